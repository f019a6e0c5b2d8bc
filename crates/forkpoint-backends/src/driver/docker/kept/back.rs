//! Volumes of a container that goes back: those that it has stay its own, with another content.

use std::path::PathBuf;

use forkpoint_core::{driver::DriverResult, id::SandboxId};

use super::{
    super::{
        container::Container,
        engine::{escape, failed},
        host::{Host, blocking, layer_error},
        http::Request,
        seal::Data,
        shape::Shape,
    },
    Planned, identity, volumes_of,
};
use crate::layer::LayerName;

impl Host {
    /// What a volume of a snapshot is called in a container that goes back.
    pub(in super::super) fn name_in_place(
        &self,
        sandbox: SandboxId,
        data: &Data,
        old: Option<&Container>,
        number: usize,
    ) -> String {
        let now = old.map(volumes_of).unwrap_or_default();
        let volume = &data.volumes[number];
        let place = volume.places.first();
        let own = now.iter().find(|own| place.is_some_and(|place| own.places.contains(place)));
        match (own, old) {
            (Some(own), _) => own.name.clone(),
            (None, None) if self.is_of(sandbox, data) => volume.name.clone(),
            _ => format!("forkpoint-{sandbox}-{number}"),
        }
    }

    /// Volumes that have to be made for a container to go back.
    pub(in super::super) async fn missing_volumes(
        &self,
        sandbox: SandboxId,
        data: &Data,
        old: Option<&Container>,
    ) -> DriverResult<Vec<String>> {
        let mut missing = Vec::new();
        for number in 0..data.volumes.len() {
            let name = self.name_in_place(sandbox, data, old, number);
            if self.inspect_volume(&name).await?.is_none() {
                missing.push(name);
            }
        }
        Ok(missing)
    }

    /// Takes volumes away, but for those that a container has.
    pub(in super::super) async fn remove_unused(&self, names: &[String]) -> DriverResult<()> {
        for name in names {
            let request = Request::new("DELETE", format!("/volumes/{}", escape(name)));
            match self.engine.ask(request).await {
                Err(err) if err.status() == Some(409) => {}
                result => super::super::engine::done(result).map_err(failed("remove a volume"))?,
            }
        }
        Ok(())
    }

    /// Which volumes of a container that goes back get another content. Those that it has now stay its
    /// own, whatever the snapshot was taken of.
    pub(in super::super) async fn plan_volumes(
        &self,
        sandbox: SandboxId,
        data: &Data,
        old: Option<&Container>,
        shape: &mut Shape,
    ) -> DriverResult<Planned> {
        let mut planned = Planned::default();
        for (number, volume) in data.volumes.iter().enumerate() {
            let name = self.name_in_place(sandbox, data, old, number);
            shape.mount(&volume.places, Some(&name));
            if self.is_empty(volume)? {
                shape.keep_empty(&volume.places);
            }
            if self.inspect_volume(&name).await?.is_none() {
                planned.sends.extend(self.make_volume(sandbox, &name, volume).await?);
            } else if let Some(layer) = &volume.layer {
                planned.swaps.push((name, layer.clone()));
            }
        }
        Ok(planned)
    }

    /// Who the volumes are that are to be exchanged, for the note that is written before.
    pub(in super::super) async fn swap_names(
        &self,
        swaps: &[(String, LayerName)],
    ) -> DriverResult<Vec<String>> {
        let mut names = Vec::new();
        for (name, _) in swaps {
            names.push(identity(name, &self.near_volume(name).await?));
        }
        Ok(names)
    }

    /// Nothing of ours uses them meanwhile.
    pub(in super::super) async fn exchange_volumes(
        &self,
        swaps: &[(String, LayerName)],
    ) -> DriverResult<()> {
        for (name, layer) in swaps {
            let path = self.near_volume(name).await?;
            let (store, name, layer) = (self.volumes()?, name.clone(), layer.clone());
            blocking(move || {
                let exchanged = store.exchange(&layer, &identity(&name, &path), &path);
                exchanged.map_err(layer_error("bring a volume back"))
            })
            .await?;
        }
        Ok(())
    }

    pub(in super::super) async fn settle_volumes(
        &self,
        names: Vec<String>,
        forward: bool,
    ) -> DriverResult<()> {
        if names.is_empty() {
            return Ok(());
        }
        let store = self.volumes()?;
        blocking(move || {
            let settled = names.iter().try_for_each(|name| match forward {
                true => store.finish(name).map(drop),
                false => store.undo(name),
            });
            settled.map_err(layer_error("bring a volume back"))
        })
        .await
    }

    pub(in super::super) async fn near_volume(&self, name: &str) -> DriverResult<PathBuf> {
        match self.volume_path(name).await? {
            Some(path) => Ok(path),
            None => super::super::engine::invalid(format!(
                "volume `{name}` is out of reach: run this where the engine is, as root"
            )),
        }
    }
}
