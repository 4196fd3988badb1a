//! The kernel's multipath over two daemons with one file, and over two listeners of one of them, while a path is cut.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{NQN, Part, free_port, guest, script, watch};
use crate::node::Node;
use crate::raceline::Tree;
use crate::step::Outcome;

/// The size of either namespace, in MiB.
const NAMESPACE_MIB: u64 = 64;
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
    let nodes = Node::pair(&dir)?;
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
    let health: Result<()> = cuts.nodes.into_iter().try_for_each(Node::stop);
    std::fs::remove_dir_all(&dir)?;
    let outcome = outcome?;
    health.context("the daemons after the guest's checks")?;
    Ok(outcome)
}

impl Cuts<'_> {
    fn set_up(&mut self, dir: &Path) -> Result<()> {
        let file = dir.join("shared.img");
        std::fs::File::create(&file)?.set_len(NAMESPACE_MIB << 20)?;
        for (node, port) in self.nodes.iter_mut().zip(self.ports) {
            node.start(self.tree, None, &[])?;
            node.export(self.tree, &file, NQN, &format!("127.0.0.1:{port}"))?;
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
            "start" => node.start(self.tree, None, &[]),
            "cut" => node.verb(self.tree, &format!("port rm {place}")),
            "mend" => node.verb(self.tree, &format!("port add {place}")),
            "optimized" | "inaccessible" => {
                node.verb(self.tree, &format!("port set {place} --ana {word}"))
            }
            other => bail!("the guest asks for '{other}'"),
        }
    }
}
