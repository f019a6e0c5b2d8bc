//! Images that another tool kept as snapshots, taken over: an image of ours with the same layers. Theirs
//! stays theirs.

use forkpoint_core::{
    driver::{
        Artifact, Claimed, DriverError, DriverResult, NativeState, Piece, PieceName, SnapshotKind,
    },
    id::SnapshotId,
};
use serde_json::{Map, Value, json};

use super::{
    DRIVER,
    container::Container,
    engine::{escape, failed},
    host::Host,
    image::Marked,
    label,
    life::spec_of,
    seal::{Data, VERSION, layers_of},
};

impl Host {
    pub(super) async fn claim(
        &self,
        snapshot: SnapshotId,
        what: &NativeState,
    ) -> DriverResult<Claimed> {
        let missing = || DriverError::NativeMissing { driver: DRIVER, name: what.name.clone() };
        if what.name.is_empty()
            || what.name.contains(['?', '#', ' ', '%'])
            || what.name.contains("..")
        {
            return Err(missing());
        }
        let image = self.inspect_image(&what.name).await?.ok_or_else(missing)?;
        let inspect = self.told_container(&image, what).await?;
        // A commit added one layer to those that were there.
        let origin = layers_of(&image).saturating_sub(1);
        let labels = vec![
            (label::DATA, self.data()?.0.clone()),
            (label::SNAPSHOT, snapshot.to_string()),
            (label::ORIGIN, origin.to_string()),
            (label::SANDBOX, String::new()),
            (label::SOURCE, String::new()),
        ];
        let own = self.relabel(&image, &Marked { snapshot, labels }).await?;
        let (spec, sandbox) = (spec_of(&inspect)?, label::adopted_id(inspect.id()));
        let data = Data::of_image(own, origin, inspect);
        let total_bytes = image["Size"].as_u64().unwrap_or(0);
        let name = PieceName(label::piece(self.data()?, snapshot));
        let artifact = Artifact {
            snapshot,
            kind: SnapshotKind::Files,
            version: VERSION,
            data: serde_json::to_value(data)
                .map_err(|err| DriverError::Damaged { snapshot, reason: err.to_string() })?,
            pieces: vec![Piece { name, over: None, bytes: 0 }],
            own_bytes: 0,
            total_bytes,
            file_count: 0,
            counted: true,
            durable: false,
        };
        Ok(Claimed { artifact, sandbox, spec })
    }

    /// What the image itself says, and of what was written down beside it only names: who it was, and
    /// networks that are there.
    async fn told_container(&self, image: &Value, what: &NativeState) -> DriverResult<Container> {
        let told = &what.told;
        let id = what.of.as_deref().or_else(|| told["container_id"].as_str()).unwrap_or(&what.name);
        let text = |key: &str| told[key].as_str().unwrap_or_default();
        let mut config = image["Config"].clone();
        config["Image"] = image["Id"].clone();
        let mut networks = Map::new();
        let known = &told["agent_metadata"]["original_network_settings"]["Networks"];
        for (name, _) in known.as_object().into_iter().flatten() {
            let path = format!("/networks/{}", escape(name));
            if self.engine.find(path).await.map_err(failed("look at a network"))?.is_some() {
                networks.insert(name.clone(), json!({ "Aliases": null, "IPAMConfig": null }));
            }
        }
        let mode = networks.keys().next().map_or("default", String::as_str).to_owned();
        Ok(Container(json!({
            "Id": id,
            "Name": format!("/{}", text("container_name")),
            "Image": image["Id"],
            "Config": config,
            "HostConfig": { "NetworkMode": mode },
            "Mounts": [],
            "NetworkSettings": { "Networks": networks },
        })))
    }
}
