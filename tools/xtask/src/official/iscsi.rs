//! iSCSI in the life of a target: a target node as an official client makes it, seen by libiscsi's programs.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::life::Life;
use crate::child::Task;

const NODE: &str = "iqn.2016-06.io.spdk:disk1";
const SECRETS: &str = "user:one secret:secret-of-user-1 muser:two msecret:secret-of-target";

impl Life<'_> {
    /// Groups, a target node with two LUNs, secrets, what libiscsi sees of them, and their end.
    pub(super) fn iscsi(&mut self) -> Result<()> {
        let client = self.client();
        for name in ["Lun0", "Lun1"] {
            client.run(&["bdev_malloc_create", "-b", name, "8", "512"])?;
        }
        client.run(&["iscsi_create_portal_group", "1", "127.0.0.1:0"])?;
        client.run(&["iscsi_create_initiator_group", "2", "ANY", "127.0.0.1/32"])?;
        let node = [NODE, "Data Disk1", "Lun0:0", "1:2", "64"];
        client.run(&[&["iscsi_create_target_node"], &node[..], &["-d"]].concat())?;
        client.run(&["iscsi_target_node_add_lun", NODE, "Lun1", "-i", "1"])?;
        let listed = client.json(&["iscsi_get_target_nodes"])?;
        let is_it = listed[0]["name"] == NODE && listed[0]["luns"][1]["bdev_name"] == "Lun1";
        ensure!(is_it && listed[0]["disable_chap"] == true, "{listed}");
        let groups = client.json(&["iscsi_get_portal_groups"])?;
        let port = groups[0]["portals"][0]["port"].as_str();
        let port = port.with_context(|| format!("no port in {groups}"))?;
        let portal = format!("127.0.0.1:{port}");
        let shown = Task::new("iscsi-ls").args(["-s", &format!("iscsi://{portal}")]).check()?;
        let luns = shown.stdout.lines().filter(|line| line.trim().starts_with("Lun:"));
        ensure!(shown.stdout.contains(NODE) && luns.count() == 2, "{}", shown.output);

        client.run(&["iscsi_create_auth_group", "1", "-c", SECRETS])?;
        client.run(&["iscsi_target_node_set_auth", NODE, "-g", "1", "-r", "-m"])?;
        let capacity = |user: &str, target: &str| {
            let url = format!("iscsi://{user}{portal}/{NODE}/0{target}");
            Task::new("iscsi-readcapacity16").args([&url]).run()
        };
        let (one, two) =
            ("one%secret-of-user-1@", "?target_user=two&target_password=secret-of-target");
        ensure!(!capacity("", "")?.success(), "a login without a secret is taken");
        ensure!(!capacity(one, "")?.success(), "a login that proves one end is taken");
        ensure!(!capacity("one%secret-of-user-2@", two)?.success(), "a wrong secret is taken");
        let seen = capacity(one, two)?;
        ensure!(seen.success() && seen.output.contains("ADDRESS:16383"), "{}", seen.output);
        let empty = |listed: &Value| listed.as_array().is_some_and(Vec::is_empty);
        let connections = client.json(&["iscsi_get_connections"])?;
        ensure!(empty(&connections), "{connections}");
        let saved = client.run(&["save_config"])?;
        for method in ["iscsi_create_target_node", "iscsi_create_auth_group"] {
            ensure!(saved.contains(method), "save_config has no {method}");
        }

        client.run(&["iscsi_delete_target_node", NODE])?;
        client.run(&["iscsi_delete_initiator_group", "2"])?;
        client.run(&["iscsi_delete_portal_group", "1"])?;
        client.run(&["iscsi_delete_auth_group", "1"])?;
        for list in ["iscsi_get_target_nodes", "iscsi_get_portal_groups"] {
            let left = client.json(&[list])?;
            ensure!(empty(&left), "{left}");
        }
        client.run(&["bdev_malloc_delete", "Lun1"])?;
        client.run(&["bdev_malloc_delete", "Lun0"]).map(drop)
    }
}
