//! What is read of the files of nvme-cli, and what is refused.

use super::*;

/// The file of nvme-cli's package in Debian, shortened.
const COMMENTS: &str = "# Used for extracting default parameters for discovery\n#\n# Example:\n# --transport=<trtype> --traddr=<traddr>\n";
const SUBSYSTEM: &str =
    r#"[{"subsystems": [{"nqn": "nqn.x", "ports": [{"traddr": "192.0.2.7"}]}]}]"#;

/// What is found where the default files have these texts: discovery controllers, and all.
fn found(json: Option<&str>, lines: Option<&str>) -> [Result<Vec<String>, String>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let places = ["config.json", "discovery.conf"].map(|name| dir.path().join(name));
    for (place, text) in places.iter().zip([json, lines]) {
        if let Some(text) = text {
            std::fs::write(place, text).unwrap();
        }
    }
    let places = places.each_ref().map(|place| place.as_path());
    let line = Line::try_parse_from(["-a", "192.0.2.1"]).unwrap().device.connect.address;
    let over = Overrides { given: &Given::default(), line: &line, are_names: false };
    let found = [known_discovery_controllers_at(places, over), known_connections_at(places, over)];
    found.map(|found| {
        let shown = |found: Vec<Connection>| found.iter().map(Connection::shown).collect();
        found.map(shown).map_err(|failure| failure.message)
    })
}

#[test]
fn a_key_in_a_line_is_a_number_or_the_key_itself() {
    let read = |options: &str| {
        let line = format!("-a 192.0.2.1 --tls {options}");
        let words = line.split(' ').map(|word| Zeroizing::new(word.to_owned())).collect();
        let made = connection("line", words).map_err(|failure| failure.message).unwrap();
        (made.connect.address.tls_psk, made.secrets.tls.is_some())
    };
    let kernel = |name: &str| Some(std::path::PathBuf::from(name));
    assert_eq!(read("--keyring .nvme"), (kernel("kernel:"), false));
    assert_eq!(read("--tls_key 305419896"), (kernel("kernel:305419896"), false));
    assert_eq!(read("--tls-key=0x12"), (kernel("kernel:0x12"), false));
    // A key in the line takes the place of the kernel's.
    let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    assert_eq!(read(&format!("--tls_key {key}")), (None, true));
}

#[test]
fn a_default_file_without_entries_is_like_none() {
    let subsystem = vec!["192.0.2.7:4420".to_owned()];
    let [controllers, all] = found(Some(SUBSYSTEM), Some(COMMENTS));
    assert!(controllers.unwrap_err().contains("names a discovery controller: say where"));
    assert_eq!(all.unwrap(), subsystem);
    let service = vec!["192.0.2.1:8009".to_owned()];
    for json in [None, Some(""), Some("\n"), Some("[]\n"), Some("{}"), Some("{\"hosts\": []}")] {
        let [controllers, all] = found(json, Some("-t tcp -a 192.0.2.1\n"));
        assert_eq!((controllers.unwrap(), all.unwrap()), (service.clone(), service.clone()));
        for lines in [None, Some(""), Some(COMMENTS)] {
            for nothing in found(json, lines) {
                let text = nothing.unwrap_err();
                for part in
                    ["/config.json nor ", "/discovery.conf names a", "-a ADDRESS", "`-t tcp"]
                {
                    assert!(text.contains(part), "{text}");
                }
            }
        }
    }
}

#[test]
fn a_default_file_that_is_wrong_is_refused() {
    for (json, lines, says) in [
        ("[{", COMMENTS, "ends too early"),
        ("7", COMMENTS, "a list of hosts"),
        (SUBSYSTEM, "-t tcp -a", "discovery.conf:1: "),
        (SUBSYSTEM, "-t tpc -a 192.0.2.1", "no transport of nvme-cli"),
        (SUBSYSTEM, "-a 192.0.2.1\n-t fc -a 'x", "discovery.conf:2: a quote"),
    ] {
        for failed in found(Some(json), Some(lines)) {
            let text = failed.unwrap_err();
            assert!(text.contains(says), "{text}");
        }
    }
}

#[test]
fn lines_of_other_transports_are_passed_over() {
    let service = vec!["192.0.2.1:8009".to_owned()];
    for other in ["-t fc", "-tfc", "-t=FC", "--transport fc", "--transport=fc", "-q nqn.t -t loop"]
    {
        let lines = format!("{other} -a nn-0x1:pn-0x2 -w nn-0x3:pn-0x4\n-a 192.0.2.1 -t tcp\n");
        let [controllers, all] = found(None, Some(&lines));
        assert_eq!((controllers.unwrap(), all.unwrap()), (service.clone(), service.clone()));
    }
    let [controllers, _] = found(None, Some("-t fc -a x"));
    assert!(controllers.unwrap_err().contains("names a discovery controller"));
}
