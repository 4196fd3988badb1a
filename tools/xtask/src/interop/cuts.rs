//! The kernel's multipath over two daemons with one file, and over two listeners of one of them, while a path is cut.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{NQN, Part, free_port, guest, script, watch};
use crate::raceline::Tree;
use crate::serve::Serve;
use crate::step::Outcome;

/// The size of either namespace, in MiB.
const NAMESPACE_MIB: u64 = 64;
/// NGUID and UUID of the namespace that both daemons have.
const UUID: &str = "6b9f2f8c-0d3a-4c55-9a2f-00000000c075";
/// Controller numbers of the daemons: a host takes the same number twice for an error.
const NUMBERS: [&str; 2] = ["1-32759", "32760-65519"];

/// The number of cuts of a campaign.
struct Size {
    /// How often each of four kinds of cuts comes with each policy.
    rounds: u32,
    /// The policies of the campaign with two listeners; without any, there is none.
    of_listeners: &'static str,
    /// The time for either campaign, in seconds.
    limit_s: u64,
}

impl Size {
    fn of(part: Part) -> Self {
        match part {
            // With two policies 200 cuts over two daemons, with three 300; and 100 over two listeners.
            Part::CutsAll => Self { rounds: 25, of_listeners: "round-robin", limit_s: 2700 },
            // The step of the paths cuts two listeners.
            _ => Self { rounds: 1, of_listeners: "", limit_s: 280 },
        }
    }
}

/// One of the two daemons.
struct Node {
    dir: PathBuf,
    daemon: Option<Serve>,
}

impl Node {
    fn start(&mut self, tree: &Tree) -> Result<()> {
        let state = self.dir.join("state").display().to_string();
        self.daemon = Some(Serve::start(tree, &self.dir, &["--state-dir", &state])?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("the daemon is not there")?;
        daemon.healthy()?;
        daemon.kill();
        Ok(())
    }

    /// A verb of the program on the daemon.
    fn verb(&self, tree: &Tree, line: &str) -> Result<()> {
        let socket = &self.daemon.as_ref().context("the daemon is not there")?.socket;
        tree.raceline(line.split_whitespace())?.args(["-s"]).args([socket]).limit(60).check()?;
        Ok(())
    }
}

/// What the guest has to do with: ports a and b are of one daemon each, c and d are both of the first.
struct Cuts<'a> {
    tree: &'a Tree,
    nodes: [Node; 2],
    ports: [u16; 4],
}

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path, part: Part) -> Result<Outcome> {
    let size = Size::of(part);
    let image_name = image.file_name().unwrap_or_default().to_string_lossy();
    let dir = tree.scratch(&format!("interop-cuts-{image_name}"))?;
    let node = |name: &str| -> Result<Node> {
        let dir = dir.join(name);
        std::fs::create_dir(&dir)?;
        Ok(Node { dir, daemon: None })
    };
    let nodes = [node("one")?, node("two")?];
    let ports = [free_port()?, free_port()?, free_port()?, free_port()?];
    let mut cuts = Cuts { tree, nodes, ports };
    cuts.set_up(&dir)?;
    let mut task = guest(tree, image, part);
    for (name, port) in ["PORT_A", "PORT_B", "PORT_C", "PORT_D"].iter().zip(ports) {
        task = task.args(["-e", &format!("{name}={port}")]);
    }
    for (name, value) in [
        ("ROUNDS", size.rounds.to_string()),
        ("POLICIES", size.of_listeners.to_owned()),
        ("CAMPAIGN_S", size.limit_s.to_string()),
        ("KATO", "3".to_owned()),
    ] {
        task = task.args(["-e", &format!("{name}={value}")]);
    }
    let mut guest = task.args([image, &script(tree, part)]).start()?;
    let outcome = watch(&mut guest, |request| cuts.request(request));
    let health: Result<()> = cuts
        .nodes
        .into_iter()
        .try_for_each(|node| node.daemon.context("the daemon is not there")?.stop());
    std::fs::remove_dir_all(&dir)?;
    let outcome = outcome?;
    health.context("the daemons after the guest's checks")?;
    Ok(outcome)
}

impl Cuts<'_> {
    fn set_up(&mut self, dir: &Path) -> Result<()> {
        let file = dir.join("shared.img");
        std::fs::File::create(&file)?.set_len(NAMESPACE_MIB << 20)?;
        for ((node, numbers), port) in self.nodes.iter_mut().zip(NUMBERS).zip(self.ports) {
            node.start(self.tree)?;
            for line in [
                format!("bdev add file:{},shared --name disk", file.display()),
                format!(
                    "subsys add {NQN} --allow-any-host --ana --serial CUTS1 --model Raceline \
                     --cntlids {numbers}"
                ),
                format!("ns add {NQN} disk --nsid 1 --uuid {UUID}"),
                format!("port add {NQN} 127.0.0.1:{port}"),
            ] {
                node.verb(self.tree, &line)?;
            }
        }
        let [node, _] = &self.nodes;
        for line in [
            format!("bdev add ram:{NAMESPACE_MIB}M --name memory"),
            format!("subsys add {NQN}-listeners --allow-any-host --ana"),
            format!("ns add {NQN}-listeners memory --nsid 1"),
            format!("port add {NQN}-listeners 127.0.0.1:{}", self.ports[2]),
            format!("port add {NQN}-listeners 127.0.0.1:{}", self.ports[3]),
        ] {
            node.verb(self.tree, &line)?;
        }
        Ok(())
    }

    fn request(&mut self, request: &str) -> Result<()> {
        let (word, letter) = request.split_once(' ').unwrap_or((request, ""));
        let (index, node, nqn) = match letter {
            "a" => (0, 0, NQN.to_owned()),
            "b" => (1, 1, NQN.to_owned()),
            "c" => (2, 0, format!("{NQN}-listeners")),
            "d" => (3, 0, format!("{NQN}-listeners")),
            other => bail!("the guest asks for '{word}' of '{other}'"),
        };
        let place = format!("{nqn} 127.0.0.1:{}", self.ports[index]);
        let node = &mut self.nodes[node];
        match word {
            "kill" => node.kill(),
            "start" => node.start(self.tree),
            "cut" => node.verb(self.tree, &format!("port rm {place}")),
            "mend" => node.verb(self.tree, &format!("port add {place}")),
            "optimized" | "inaccessible" => {
                node.verb(self.tree, &format!("port set {place} --ana {word}"))
            }
            other => bail!("the guest asks for '{other}'"),
        }
    }
}
