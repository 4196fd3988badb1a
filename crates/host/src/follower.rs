//! Has I/O queues follow the association of a controller whose admin queue is on another thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_reactor::{Context, Token};

use crate::admin_link::{LinkSnapshot, LinkState};
use crate::config::Association;
use crate::error::HostError;
use crate::queue_set::IoQueueSet;

/// How often the association is looked at while it is up and all queues are ready.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked at otherwise.
const LOOK_SOON_INTERVAL: Duration = Duration::from_millis(50);

/// Looks at the association by a timer, and tells the queues what has become of it.
#[derive(Debug)]
pub(crate) struct AssociationFollower {
    state: Arc<LinkState>,
    /// The timer's token.
    token: Token,
    /// The association that the queues have been told of.
    followed: Option<Association>,
    /// When the association is looked at next.
    look_at: Option<Instant>,
}

/// What the queues have to be told.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    /// Another association is up. The one before may have been lost without the follower seeing it.
    Up,
    /// The association is lost.
    Down,
    /// The controller was given up.
    GivenUp,
}

impl Change {
    fn between(followed: Option<&Association>, snapshot: &LinkSnapshot) -> Self {
        match (followed, &snapshot.association) {
            _ if snapshot.failed.is_some() => Self::GivenUp,
            (Some(followed), Some(up)) if followed.is(up) => Self::None,
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
        Self { state, token, followed: None, look_at: None }
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

    /// Looks at the association and has the queues follow it; asks for a timer to look again, unless
    /// the controller was given up. Gives what it saw.
    pub(crate) fn follow(&mut self, cx: &mut Context<'_>, queues: &mut IoQueueSet) -> LinkSnapshot {
        let snapshot = self.state.get();
        self.look_at = None;
        let change = Change::between(self.followed.as_ref(), &snapshot);
        match change {
            Change::None => {}
            Change::Up | Change::Down => {
                if self.followed.take().is_some() {
                    queues.handle_down(cx, &HostError::Closed);
                }
                if let Some(association) = &snapshot.association {
                    queues.handle_up(cx, association);
                }
                self.followed.clone_from(&snapshot.association);
            }
            Change::GivenUp => {
                queues.close(cx);
                return snapshot;
            }
        }
        if self.followed.is_some() && queues.is_ready() {
            self.look_after(cx, LOOK_INTERVAL);
        } else {
            self.look_soon(cx);
        }
        snapshot
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

    const TOKEN: Token = Token { owner: 0, generation: 0, index: 9 };

    fn association(cntlid: u16) -> Association {
        Association {
            cntlid: ControllerId(cntlid),
            max_entries: 128,
            io_queues: 1,
            controller: Arc::new(ControllerInfo::parse(&[0; 4096]).unwrap()),
            namespaces: Arc::new([]),
        }
    }

    /// A follower with one queue, whose peer takes connections and says nothing.
    struct Bench {
        io: EpollIo,
        pool: BufferPool,
        _peer: TcpListener,
        state: Arc<LinkState>,
        queues: IoQueueSet,
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
            Self {
                io: EpollIo::new().unwrap(),
                pool: BufferPool::new(&PoolConfig::default()).unwrap(),
                _peer: peer,
                queues: IoQueueSet::new(&config, [1], Token { index: 0, ..TOKEN }),
                follower: AssociationFollower::new(Arc::clone(&state), TOKEN),
                state,
                now: Instant::now(),
            }
        }

        fn follow(&mut self) -> LinkSnapshot {
            let mut cx = Context { io: &mut self.io, pool: &self.pool, now: self.now };
            self.follower.follow(&mut cx, &mut self.queues)
        }

        fn set(&self, association: Option<&Association>, failed: Option<HostError>) {
            self.state.update(|state| {
                state.association = association.cloned();
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
        assert_eq!((snapshot.version, bench.queues.len()), (1, 1));
        assert!(!bench.queues.is_lost(), "it connects");
        assert_eq!(bench.looks_after(), Some(LOOK_SOON_INTERVAL), "it is not ready yet");

        bench.set(None, None);
        bench.follow();
        assert!(bench.follower.followed.is_none());
        bench.set(Some(&association(1)), None);
        bench.follow();
        // The number is that of the first association, but the association is another.
        assert!(bench.follower.followed.as_ref().is_some_and(|up| !up.is(&first)));
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
        let snapshot = |up: Option<&Association>| LinkSnapshot {
            association: up.cloned(),
            ..LinkSnapshot::default()
        };
        let change = |followed, up| Change::between(followed, &snapshot(up));
        assert_eq!(change(None, None), Change::None);
        assert_eq!(change(None, Some(&one)), Change::Up);
        assert_eq!(change(Some(&one), Some(&one)), Change::None);
        assert_eq!(change(Some(&one), Some(&later)), Change::None, "only its namespaces changed");
        assert_eq!(change(Some(&one), Some(&other)), Change::Up);
        assert_eq!(change(Some(&one), None), Change::Down);
        let failed = LinkSnapshot { failed: Some(HostError::Reset), ..snapshot(Some(&one)) };
        assert_eq!(Change::between(Some(&one), &failed), Change::GivenUp);
    }
}
