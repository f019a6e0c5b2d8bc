use forkpoint_core::retention::{KeepGroup, RetentionPolicy};
use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;

fn read(place: Place, text: &str) -> Result<Config, String> {
    let mut config = Config::default();
    let taken = config.take(place, PathBuf::from("/etc/fp/forkpoint.toml"), text);
    taken.map(|()| config).map_err(|err| err.to_string())
}

/// Any text, and one made of what a configuration is made of.
fn text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "\n",
        " = ",
        "[",
        "]",
        "{",
        "}",
        "\"",
        ":",
        ",",
        "-1",
        "1e400",
        "99999999999999999999",
        "0.5",
        "true",
        "null",
        "\"5G\"",
        "data_dir",
        "[retention]",
        "max_total",
        "max_size",
        "[hooks]",
        "timeout",
        "triggers",
        "\"triggers\"",
        "[\"run_end\"]",
        "\"max_storage_size_gb\"",
        "\"auto_cleanup_days\"",
        "naming",
        "\"{step\"",
        "#",
        "'",
        "\u{0}",
    ]);
    prop_oneof![
        any::<String>(),
        proptest::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_written_is_a_configuration_or_a_mistake_with_its_place(text in text()) {
        for place in [Place::Named, Place::WorkingDirectory] {
            if let Err(mistake) = read(place, &text) {
                prop_assert!(mistake.contains("forkpoint.toml"), "{}", mistake);
            }
        }
    }
}

fn named(text: &str) -> Result<Config, String> {
    read(Place::Named, text)
}

#[test]
fn every_section_is_read() {
    let config = named(
        r#"
        data_dir = "data"
        driver = "docker"
        [snapshots]
        triggers = ["run_end"]
        naming = "{sandbox_name}-{step}"
        skip_unchanged = true
        max_agent_state = "2M"
        [forks]
        max = 8
        parallel = 2
        [local]
        warm = 8
        share_memory = true
        live_rotation = false
        [retention]
        max_per_sandbox = 10
        keep_last = 3
        keep_last_by = "label:team"
        max_total = 100
        max_size = "5G"
        max_age_days = 7
        [hooks]
        before_snapshot = "sync"
        after_restore = "./resume"
        timeout = "3s"
        on_failure = "warn"
        [defaults]
        template = "dir:/srv/root"
        network = "host"
        memory = "512M"
        cpus = 1.5
        pids = 100
        user = "nobody"
        workdir = "/srv"
        ttl = "4h"
        "#,
    )
    .unwrap();
    let engine = config.engine();
    assert_eq!(config.settings.data_dir.as_deref(), Some("/etc/fp/data".as_ref()));
    assert_eq!((engine.default_driver.as_str(), engine.max_forks), ("docker", 8));
    assert_eq!((engine.max_agent_state_bytes, engine.parallel_forks), (2 << 20, 2));
    assert_eq!((config.settings.warm, config.settings.share_memory), (8, true));
    assert_eq!(config.settings.live_rotation, Some(false));
    assert!(engine.triggers.contains(forkpoint_core::trigger::Trigger::RunEnd));
    assert!(!engine.triggers.contains(forkpoint_core::trigger::Trigger::RunStart));
    let keep = KeepLast { count: 3, group: KeepGroup::Label("team".to_owned()) };
    let expected = RetentionPolicy {
        max_age: Some(SignedDuration::from_hours(7 * 24)),
        max_per_sandbox: Some(10),
        max_total: Some(100),
        max_bytes: Some(5 << 30),
        keep_last: Some(keep),
    };
    assert_eq!(engine.retention, expected);
    let defaults = &config.settings.defaults;
    assert_eq!(defaults.resources.cpu_millis, Some(1500));
    assert_eq!(engine.hooks.after_restore.as_deref(), Some("./resume"));
    assert_eq!(engine.hooks.on_failure, forkpoint_core::engine::OnFailure::Warn);
    assert_eq!(config.given.len(), KEYS.len(), "this test names every key");
}

#[test]
fn the_older_managers_file_is_read_as_it_is() {
    let config = named(
        r#"{"triggers": ["run_start", "run_end", "after_action"], "storage_path": "./snapshots",
        "max_snapshots_per_container": 10, "max_total_snapshots": 100, "max_storage_size_gb": 5.0,
        "auto_cleanup_days": 7, "naming_pattern": "{container_name}_{trigger}_{timestamp}",
        "compression_enabled": true}"#,
    )
    .unwrap();
    let retention = config.retention();
    assert_eq!(config.settings.data_dir.as_deref(), Some("./snapshots".as_ref()));
    assert_eq!((retention.max_per_sandbox, retention.max_total), (Some(10), Some(100)));
    assert_eq!(retention.max_bytes, Some(5 << 30));
    assert_eq!(retention.max_age, Some(SignedDuration::from_hours(168)));
    assert_eq!(config.ignored, ["`compression_enabled` in `/etc/fp/forkpoint.toml`"]);
}

#[test]
fn mistakes_name_the_file_the_line_and_the_way_out() {
    let told: Vec<String> = [
        "\n[retention]\nmax_totl = 3",
        "[snapshots]\nmax_total = 3",
        "colour = 1",
        "[retention]\nmax_total = \"ten\"",
        "[retention]\nkeep_last = 0",
        "[local]\nwarm = 65",
        "[local]\nwarm = -1",
        "[retention]\nmax_age_days = -1",
        "[retention]\nmax_age_days = 0",
        "[hooks]\ntimeout = \"2h\"",
        "[retention]\nmax_size = \"5X\"",
        "[snapshots]\ntriggers = [\"sometimes\"]",
        "[snapshots]\nnaming = \"{nosuch}\"",
        "[defaults]\nnetwork = \"bridge\"",
        "data_dir = 7",
        "[retention\nmax_total = 1",
        "{\"max_total_snapshot\": 1}",
        "{\n\"max_storage_size_gb\": 0}",
        "{\n\"auto_cleanup_days\": 0}",
        "{\n\"triggers\": [\n}",
    ]
    .into_iter()
    .map(|text| named(text).expect_err(text))
    .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn a_file_that_was_found_may_only_do_what_is_harmless() {
    let found = |text| read(Place::WorkingDirectory, text);
    for text in ["[snapshots]\nnaming = \"{step}\"", "[defaults]\nmemory = \"1G\""] {
        found(text).unwrap();
    }
    for text in [
        "data_dir = \"/tmp/x\"",
        "[retention]\nmax_total = 1",
        "[snapshots]\nskip_unchanged = true",
        "[snapshots]\ntriggers = []",
        "[local]\nwarm = 8",
        "[local]\nshare_memory = true",
        "[local]\nlive_rotation = false",
        "[hooks]\nbefore_snapshot = \"true\"",
        "[hooks]\nafter_restore = \"true\"",
        "[hooks]\ntimeout = \"1h\"",
        "[hooks]\non_failure = \"warn\"",
        "[defaults]\nnetwork = \"host\"",
        "[defaults]\ntemplate = \"dir:/\"",
    ] {
        let err = found(text).expect_err(text);
        assert!(err.contains("say `--config /etc/fp/forkpoint.toml` if you mean it"), "{err}");
        named(text).unwrap();
    }
}

#[test]
fn the_nearest_file_has_the_last_word_key_by_key() {
    let mut config = Config::default();
    for (path, text) in [
        ("/etc/f", "[retention]\nmax_total = 9\nkeep_last = 2"),
        ("/h/f", "[retention]\nmax_total = 5"),
    ] {
        config.take(Place::User, path.into(), text).unwrap();
    }
    let retention = config.retention();
    assert_eq!(
        (retention.max_total, retention.keep_last.map(|keep| keep.count)),
        (Some(5), Some(2))
    );
    assert_eq!(
        config.row(Key::find("retention.max_total").unwrap()).origin.as_deref(),
        Some("/h/f")
    );
    assert_eq!(config.row(Key::find("retention.max_size").unwrap()).origin, None);
}

#[test]
fn nothing_in_a_file_makes_us_panic() {
    for text in ["", "{", "{}", "[]", "a.b.c = 1", "data_dir = []", "\u{0}", "[[retention]]\n", "x"]
    {
        let _ = named(text);
    }
}
