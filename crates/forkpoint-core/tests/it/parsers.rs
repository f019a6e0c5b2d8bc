//! What comes from outside as text: nothing makes a parser panic, and what it takes is in its form.

use forkpoint_core::{
    catalog::{Cursor, Operation, SnapshotRecord},
    driver::SnapshotKind,
    id::{OperationId, OwnerId, SandboxId, SnapshotId},
    label::Labels,
    naming::{Name, NamingFacts, NamingPattern},
    path::SandboxPath,
    spec::Template,
    store::BlobName,
    trigger::Trigger,
};
use proptest::{collection::vec, prelude::*, string::string_regex};

/// Text of any kind, and text that is nearly right.
fn text() -> impl Strategy<Value = String> {
    let near = "(snp|sbx|opr|own|data/|index/|\\{|/|)[0-9a-z{}@:./_-]{0,70}";
    prop_oneof![any::<String>(), string_regex(near).unwrap()]
}

/// What parses prints as what it was parsed from.
fn round_trip<T: std::str::FromStr + ToString>(text: &str) -> Result<(), TestCaseError> {
    if let Ok(parsed) = text.parse::<T>() {
        prop_assert_eq!(parsed.to_string(), text);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_what_parses_prints_back(text in text()) {
        round_trip::<SandboxId>(&text)?;
        round_trip::<SnapshotId>(&text)?;
        round_trip::<OperationId>(&text)?;
        round_trip::<OwnerId>(&text)?;
        round_trip::<Name>(&text)?;
        round_trip::<NamingPattern>(&text)?;
        round_trip::<Template>(&text)?;
        round_trip::<BlobName>(&text)?;
        round_trip::<Trigger>(&text)?;
        let _ = text.parse::<Cursor>();
        if let Ok(path) = SandboxPath::new(&text) {
            prop_assert_eq!(SandboxPath::new(path.as_path()).unwrap(), path);
        }
        let _ = Labels::new([(text.as_str(), text.as_str())]);
        let _ = serde_json::from_str::<Operation>(&text);
        let _ = serde_json::from_str::<SnapshotRecord>(&text);
    }

    #[test]
    fn every_id_prints_and_parses(bits in any::<u128>()) {
        let id = SnapshotId::from_u128(bits);
        prop_assert_eq!(id.to_string().parse::<SnapshotId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        prop_assert_eq!(serde_json::from_str::<SnapshotId>(&json).unwrap(), id);
    }

    #[test]
    fn a_pattern_always_gives_a_name(
        pieces in vec(prop_oneof![
            any::<String>().prop_map(|text| text.replace(['{', '}'], "")),
            Just("{sandbox_name}".to_owned()), Just("{snapshot_id}".to_owned()),
            Just("{run_id}".to_owned()), Just("{timestamp}".to_owned()), Just("{step}".to_owned()),
        ], 1..6),
        run_id in any::<String>(),
        bits in any::<u128>(),
        seconds in -377_705_023_201i64..253_402_207_200,
    ) {
        let Ok(pattern) = pieces.concat().parse::<NamingPattern>() else { return Ok(()) };
        let snapshot = SnapshotId::from_u128(bits);
        let name = pattern.render(&NamingFacts {
            sandbox: SandboxId::from_u128(bits),
            sandbox_name: None,
            snapshot,
            trigger: Trigger::Periodic,
            kind: SnapshotKind::Full,
            driver: "a driver",
            run_id: Some(&run_id),
            step: Some(u64::MAX),
            at: jiff::Timestamp::from_second(seconds).unwrap(),
        });
        prop_assert!(name.as_str().parse::<Name>().is_ok(), "{}", name);
        prop_assert!(name.made_unique(snapshot).as_str().parse::<Name>().is_ok());
    }
}
