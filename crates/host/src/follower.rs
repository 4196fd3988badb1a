//! Has I/O queues follow the association of a controller whose admin queue is on another thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_reactor::{Context, Token};

use crate::admin_link::{LinkPath, LinkSnapshot, LinkState};
use crate::config::Association;
use crate::error::HostError;
use crate::multipath::{PathId, PathSet};
use crate::path::Routing;

/// How often the association is looked at while it is up and all queues are ready.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked at otherwise.
const LOOK_SOON_INTERVAL: Duration = Duration::from_millis(50);

/// How often paths are looked at where there may be several.
const LOOK_MULTIPATH_INTERVAL: Duration = Duration::from_millis(100);

/// Looks at the associations of all paths by a timer, and tells the queues what has become of them.
#[derive(Debug)]
pub(crate) struct AssociationFollower {
    state: Arc<LinkState>,
    /// The timer's token.
    token: Token,
    /// What the queues have been told of each path.
    followed: Vec<Followed>,
    routing: Routing,
    /// When the association is looked at next.
    look_at: Option<Instant>,
}

/// A path as the queues have been told of it.
#[derive(Debug)]
struct Followed {
    path: PathId,
    association: Option<Association>,
    given_up: bool,
}

/// What the queues have to be told.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    /// Another association is up. The one before may have been lost without the follower seeing it.
    Up,
    /// The association is the same, and leads to other namespaces or in another way.
    News,
    /// The association is lost.
    Down,
    /// The path was given up.
    GivenUp,
}

impl Change {
    fn between(followed: Option<&Association>, path: &LinkPath) -> Self {
        match (followed, &path.association) {
            _ if path.failed.is_some() => Self::GivenUp,
            (Some(followed), Some(up)) if followed.is(up) => match followed.says_the_same(up) {
                true => Self::None,
                false => Self::News,
            },
            (_, Some(_)) => Self::Up,
            (Some(_), None) => Self::Down,
            (None, None) => Self::None,
        }
    }
}

impl AssociationFollower {
    /// For queues that follow no association yet. Timers are asked for with `token`; [`Self::is_due`]
    /// judges what they bring.
    pub(crate) fn new(state: Arc<LinkState>, token: Token) -> Self {
        let (followed, routing) = (Vec::new(), Routing::default());
        Self { state, token, followed, routing, look_at: None }
    }

    /// The controller's state as of now.
    #[inline]
    pub(crate) fn state(&self) -> &LinkState {
        &self.state
    }

    /// Whether it is time for [`Self::follow`]. A timer that an earlier one has overtaken expires without
    /// effect, since none can be cancelled.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.look_at.is_some_and(|at| at <= now)
    }

    /// Looks at the associations and has the queues follow them; asks for a timer to look again, unless
    /// the controller was given up. Gives what it saw.
    pub(crate) fn follow(&mut self, cx: &mut Context<'_>, queues: &mut PathSet) -> LinkSnapshot {
        let snapshot = self.state.get();
        self.look_at = None;
        if snapshot.failed.is_some() {
            queues.close(cx);
            return snapshot;
        }
        self.follow_removals(cx, queues, &snapshot);
        for path in &snapshot.paths {
            self.follow_path(cx, queues, path);
        }
        if self.routing != snapshot.routing {
            self.routing.clone_from(&snapshot.routing);
            queues.set_routing(cx, &self.routing);
        }
        let all_up = self.followed.iter().all(|it| it.given_up || it.association.is_some());
        if !all_up || !queues.is_ready() {
            self.look_soon(cx);
        } else if queues.is_multipath() {
            self.look_after(cx, LOOK_MULTIPATH_INTERVAL);
        } else {
            self.look_after(cx, LOOK_INTERVAL);
        }
        snapshot
    }

    fn follow_removals(
        &mut self,
        cx: &mut Context<'_>,
        queues: &mut PathSet,
        snapshot: &LinkSnapshot,
    ) {
        self.followed.retain(|followed| {
            let is_there = snapshot.path(followed.path).is_some();
            if !is_there {
                queues.remove_path(cx, followed.path);
            }
            is_there
        });
    }

    fn follow_path(&mut self, cx: &mut Context<'_>, queues: &mut PathSet, path: &LinkPath) {
        let id = path.id;
        let at = self.followed.iter().position(|known| known.path == id).unwrap_or_else(|| {
            let followed = Followed { path: id, association: None, given_up: false };
            self.followed.push(followed);
            if !queues.has_path(id) && path.failed.is_none() {
                queues.add_path(cx, id, &path.config);
            }
            queues.set_counters(id, &path.counters);
            self.followed.len() - 1
        });
        let followed = &mut self.followed[at];
        match Change::between(followed.association.as_ref(), path) {
            Change::None => return,
            Change::News => {
                if let Some(up) = &path.association {
                    queues.handle_namespaces(cx, id, &up.namespaces);
                    if let Some(ana) = &up.ana {
                        queues.handle_ana(cx, id, ana);
                    }
                }
            }
            Change::Up | Change::Down => {
                if followed.association.is_some() {
                    queues.handle_down(cx, id, &HostError::Closed);
                }
                if let Some(association) = &path.association {
                    queues.handle_up(cx, id, association);
                }
            }
            Change::GivenUp => {
                if !std::mem::replace(&mut followed.given_up, true) {
                    queues.handle_failed(cx, id);
                }
            }
        }
        followed.association.clone_from(&path.association);
    }

    /// Looks at the association soon, because a queue is lost.
    pub(crate) fn look_soon(&mut self, cx: &mut Context<'_>) {
        self.look_after(cx, LOOK_SOON_INTERVAL);
    }

    /// Looks after `interval`, unless it looks before that anyway.
    fn look_after(&mut self, cx: &mut Context<'_>, interval: Duration) {
        let at = cx.now + interval;
        if self.look_at.is_none_or(|earlier| at < earlier) {
            self.look_at = Some(at);
            cx.io.timer(at, self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use raceline_proto::host::ControllerInfo;
    use raceline_proto::nvme::{ControllerId, HostId, Nqn};
    use raceline_reactor::{BufferPool, EpollIo, PoolConfig};

    use super::*;
    use crate::config::HostConfig;
    use crate::multipath::Fence;

    const TOKEN: Token = Token { owner: 0, generation: 0, index: 9 };

    fn association(cntlid: u16) -> Association {
        Association {
            generated: None,
            cntlid: ControllerId(cntlid),
            max_entries: 128,
            io_queues: 1,
            controller: Arc::new(ControllerInfo::parse(&[0; 4096]).unwrap()),
            namespaces: Arc::new([]),
            ana: None,
            fence: Fence::new(Duration::ZERO),
        }
    }

    fn path(config: &HostConfig, association: Option<&Association>) -> LinkPath {
        LinkPath {
            id: PathId::FIRST,
            config: Arc::new(config.clone()),
            association: association.cloned(),
            failed: None,
            counters: Arc::default(),
            was_up: association.is_some(),
        }
    }

    /// A follower with one queue, whose peer takes connections and says nothing.
    struct Bench {
        io: EpollIo,
        pool: BufferPool,
        _peer: TcpListener,
        state: Arc<LinkState>,
        queues: PathSet,
        follower: AssociationFollower,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let peer = TcpListener::bind("127.0.0.1:0").unwrap();
            let nqn = Nqn::new("nqn.2026-01.io.raceline:follower").unwrap();
            let address = peer.local_addr().unwrap();
            let config = HostConfig::new(address, nqn.clone(), nqn, HostId([3; 16]));
            let state = Arc::new(LinkState::default());
            state.update(|state| state.paths = vec![path(&config, None)]);
            let (mut io, now) = (EpollIo::new().unwrap(), Instant::now());
            let pool = BufferPool::new(&PoolConfig::default()).unwrap();
            let cx = Context { io: &mut io, pool: &pool, now };
            let queues = PathSet::new(&cx, &config, [1], Token { index: 0, ..TOKEN });
            Self {
                io,
                pool,
                _peer: peer,
                queues,
                follower: AssociationFollower::new(Arc::clone(&state), TOKEN),
                state,
                now,
            }
        }

        fn follow(&mut self) -> LinkSnapshot {
            let mut cx = Context { io: &mut self.io, pool: &self.pool, now: self.now };
            self.follower.follow(&mut cx, &mut self.queues)
        }

        fn set(&self, association: Option<&Association>, failed: Option<HostError>) {
            self.state.update(|state| {
                state.paths[0].association = association.cloned();
                state.failed = failed;
            });
        }

        /// How long until it looks again.
        fn looks_after(&self) -> Option<Duration> {
            self.follower.look_at.map(|at| at - self.now)
        }
    }

    #[test]
    fn queues_follow_an_association_up_over_and_down() {
        let mut bench = Bench::new();
        bench.follow();
        assert_eq!((bench.queues.len(), bench.looks_after()), (0, Some(LOOK_SOON_INTERVAL)));

        let first = association(1);
        bench.set(Some(&first), None);
        let snapshot = bench.follow();
        assert_eq!((snapshot.version, bench.queues.len()), (2, 1));
        assert!(!bench.queues.is_lost(), "it connects");
        assert_eq!(bench.looks_after(), Some(LOOK_SOON_INTERVAL), "it is not ready yet");

        bench.set(None, None);
        bench.follow();
        assert!(bench.follower.followed[0].association.is_none());
        bench.set(Some(&association(1)), None);
        bench.follow();
        // The number is that of the first association, but the association is another.
        let followed = bench.follower.followed[0].association.as_ref();
        assert!(followed.is_some_and(|up| !up.is(&first)));
    }

    #[test]
    fn a_controller_that_was_given_up_closes_the_queues_and_is_looked_at_no_more() {
        let mut bench = Bench::new();
        bench.set(None, Some(HostError::Closed));
        assert!(bench.follow().failed.is_some());
        assert!(bench.queues.is_closed());
        assert_eq!(bench.looks_after(), None);
        assert!(!bench.follower.is_due(bench.now + LOOK_INTERVAL));
    }

    #[test]
    fn the_earlier_of_two_looks_is_made() {
        let mut bench = Bench::new();
        let look = |bench: &mut Bench, interval| {
            let mut cx = Context { io: &mut bench.io, pool: &bench.pool, now: bench.now };
            bench.follower.look_after(&mut cx, interval);
        };
        look(&mut bench, LOOK_INTERVAL);
        assert_eq!(bench.looks_after(), Some(LOOK_INTERVAL));
        assert!(!bench.follower.is_due(bench.now + LOOK_SOON_INTERVAL));
        look(&mut bench, LOOK_SOON_INTERVAL);
        look(&mut bench, LOOK_INTERVAL);
        assert_eq!(bench.looks_after(), Some(LOOK_SOON_INTERVAL));
        assert!(bench.follower.is_due(bench.now + LOOK_SOON_INTERVAL));
        assert_eq!(bench.io.next_timer(), Some(bench.now + LOOK_SOON_INTERVAL));
        bench.now += LOOK_SOON_INTERVAL;
        bench.follow();
        assert_eq!(bench.looks_after(), Some(LOOK_SOON_INTERVAL), "it looks again, from then on");
    }

    #[test]
    fn what_queues_are_told() {
        let (one, other) = (association(1), association(1));
        let later = Association { namespaces: Arc::new([]), ..one.clone() };
        let nqn = Nqn::new("nqn.2026-01.io.raceline:follower").unwrap();
        let address = "127.0.0.1:4420".parse().unwrap();
        let config = HostConfig::new(address, nqn.clone(), nqn, HostId([3; 16]));
        let change = |followed, up| Change::between(followed, &path(&config, up));
        assert_eq!(change(None, None), Change::None);
        assert_eq!(change(None, Some(&one)), Change::Up);
        assert_eq!(change(Some(&one), Some(&one)), Change::None);
        assert_eq!(change(Some(&one), Some(&later)), Change::News, "its namespaces changed");
        assert_eq!(change(Some(&one), Some(&other)), Change::Up);
        assert_eq!(change(Some(&one), None), Change::Down);
        let failed = LinkPath { failed: Some(HostError::Reset), ..path(&config, Some(&one)) };
        assert_eq!(Change::between(Some(&one), &failed), Change::GivenUp);
    }
}
