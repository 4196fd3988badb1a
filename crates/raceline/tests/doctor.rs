//! The verb `doctor` on the machine that the tests run on.

mod support;

use serde_json::Value;
use support::run;

#[test]
fn the_document_has_checks_and_environment_and_the_exit_code_is_the_worst() {
    let output = run(&["doctor", "lo", "--role", "target", "-o", "json"]);
    let document: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    let checks = document["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(checks.len() > 40, "{}", output.stdout);
    for check in checks {
        for field in ["id", "title", "value", "why"] {
            assert!(check[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {check}");
        }
        assert!(check["roles"].as_array().is_some_and(|roles| roles.contains(&"target".into())));
    }
    let code = match document["severity"].as_str() {
        Some("ok" | "info") => 0,
        Some("warning") => 1,
        Some("fail") => 2,
        other => panic!("a severity and not {other:?}"),
    };
    assert_eq!(output.code, Some(code), "{}", output.stderr);
    assert_eq!(document["environment"]["interface"]["name"], "lo");
    assert!(document["environment"]["kernel"]["release"].is_string());
    assert!(document["costs"].is_null());
}

#[test]
fn the_table_shows_the_command_for_what_is_wrong() {
    let output = run(&["doctor", "lo", "--measure"]);
    assert!(output.stdout.contains("measured here: a system call takes"), "{}", output.stdout);
    assert!(output.stdout.lines().any(|line| line == "Processor"), "{}", output.stdout);
    assert!(!output.stdout.contains('\x1b'), "no colours in a pipe");
    if output.code != Some(0) {
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        assert!(output.stderr.contains("results"), "{}", output.stderr);
    }
}

#[test]
fn an_interface_that_is_not_there_is_named_with_those_that_are() {
    let output = run(&["doctor", "no-such0"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""));
    let expected = "raceline: there is no interface \"no-such0\"; there are: ";
    assert!(output.stderr.starts_with(expected), "{}", output.stderr);
    assert!(output.stderr.contains("lo"), "{}", output.stderr);
}
