//! Which files an apply is about.

use std::path::{Path, PathBuf};

use forkpoint_core::{
    Timestamp,
    driver::{ApplyReport, ApplyRequest, DriverError, DriverResult, FileState},
    spec::{Workspace, WorkspaceMode},
};

use super::{invalid, now, place};
use crate::{
    driver::local::{
        host::{Host, failed, layer_error},
        look::Held,
        template::Base,
    },
    layer::{Layer, LayerError, LayerName, LayerView, ViewLevel, ViewMount},
    workspace::{ApplySpec, Line, WorkspaceError, apply},
};

/// How often it is tried again because the sandbox was sealed or rolled back meanwhile.
const TRIES: usize = 5;

const LOST: &str = "the copy that the sandbox began with is gone: there is nothing to compare with";

/// What the sandbox began with, what it has now, and what of that it has written itself.
type Views = (LayerView, LayerView, LayerView);

/// A workspace as the sandbox found it, and as it has it now. What is open stays what it is.
struct Opened {
    held: Held,
    workspace: Workspace,
    from: LayerView,
    to: LayerView,
    own: LayerView,
    line: Line,
    at: Timestamp,
}

impl Host {
    pub(in super::super) fn apply(
        &self,
        of: &FileState,
        request: &ApplyRequest,
    ) -> DriverResult<ApplyReport> {
        for _ in 0..TRIES {
            let opened = self.open_changed(of)?;
            let spec = ApplySpec {
                workspace: &opened.workspace,
                from: &opened.from,
                to: &opened.to,
                own: &opened.own,
                marks: self.store.marks(),
                line: &opened.line,
                at: opened.at,
                ledgers: &self.root.join("applied"),
                request,
                is_there: &|| self.is_there(&opened.held).unwrap_or(false),
            };
            match apply(&spec) {
                Err(WorkspaceError::Gone) => {}
                result => return result.map_err(apply_error),
            }
        }
        Err(apply_error(WorkspaceError::Gone))
    }

    fn open_changed(&self, of: &FileState) -> DriverResult<Opened> {
        match of {
            FileState::Snapshot(artifact) => {
                let data = self.read_artifact(artifact)?;
                let held = Held::Snapshot(data.layer.clone());
                let (base, workspaces) = (data.known_base()?, &data.workspaces);
                let opened =
                    self.open_workspace(held, base, workspaces, None, Some(&data.layer))?;
                Ok(Opened { line: data.line, ..opened })
            }
            FileState::Sandbox(id) => self.with_sandbox(*id, |record| {
                let upper = self.place(*id).upper(record.generation);
                let held = Held::Generation(*id, record.generation);
                let (workspaces, top) = (&record.spec.workspaces, record.top.as_ref());
                let opened =
                    self.open_workspace(held, &record.base, workspaces, Some(upper), top)?;
                let line = match record.line.is_empty() {
                    true => Line::default().begun(*id, Timestamp::MIN),
                    false => record.line.clone(),
                };
                Ok(Opened { line, ..opened })
            }),
            FileState::Beginning { .. } => {
                Err(invalid("a beginning has changed nothing".to_owned()))
            }
        }
    }

    fn open_workspace(
        &self,
        held: Held,
        base: &Base,
        workspaces: &[Workspace],
        upper: Option<PathBuf>,
        top: Option<&LayerName>,
    ) -> DriverResult<Opened> {
        let workspace = match workspaces {
            [workspace] => workspace.clone(),
            [] => return Err(invalid("it has no workspace to bring anything home to".to_owned())),
            _ => return Err(invalid("it has several workspaces".to_owned())),
        };
        self.check_source(&workspace)?;
        let chain = self.chain(top)?;
        let (from, to, own) = match workspace.mode {
            WorkspaceMode::Live => self.open_live(&workspace, upper, &chain)?,
            WorkspaceMode::Copy => self.open_copy(&workspace, base, upper, chain)?,
        };
        let (line, at) = (Line::default(), now());
        Ok(Opened { held, workspace, from, to, own, line, at })
    }

    /// A mount of its own, which the sandbox can neither move nor remove.
    fn open_live(
        &self,
        workspace: &Workspace,
        upper: Option<PathBuf>,
        chain: &[Layer],
    ) -> DriverResult<Views> {
        let trees = upper.into_iter().chain(chain.iter().map(Layer::tree_path));
        let own: Vec<_> = trees.map(level(place(workspace))).collect();
        let bottom = level(Path::new(""))(workspace.source.as_path().to_owned());
        let to = own.iter().cloned().chain([bottom.clone()]).collect();
        Ok((self.open_view(vec![bottom])?, self.open_view(to)?, self.open_view(own)?))
    }

    /// A directory among others, which the sandbox may have removed, and made another.
    fn open_copy(
        &self,
        workspace: &Workspace,
        base: &Base,
        upper: Option<PathBuf>,
        mut chain: Vec<Layer>,
    ) -> DriverResult<Views> {
        let Some(pin) = chain.pop_if(|bottom| bottom.name().is_pin()) else {
            return Err(invalid(LOST.to_owned()));
        };
        let at = place(workspace);
        // The last mount on the way there, as in the sandbox.
        let mounts = base.0.iter().map(|bottom| bottom.at.as_path());
        let mount =
            mounts.filter(|mount| at.starts_with(mount)).max_by_key(|mount| mount.iter().count());
        let mount = mount.unwrap_or(Path::new(""));
        let at = at.strip_prefix(mount).unwrap_or(at);
        let trees = upper.into_iter().chain(chain.iter().map(Layer::tree_path));
        let own: Vec<_> = trees.map(level(mount)).collect();
        let bottom = level(mount)(pin.tree_path());
        let to = own.iter().cloned().chain([bottom.clone()]).collect();
        let below = |levels| {
            let view = self.open_view(levels)?;
            view.below(at).map_err(layer_error("look at files"))
        };
        let from = below(vec![bottom])?.ok_or_else(|| invalid(LOST.to_owned()))?;
        let to = below(to)?.ok_or_else(|| {
            let at = &workspace.at;
            invalid(format!(
                "the sandbox has no directory `{at}` any more: put it back, or roll back, and apply then"
            ))
        })?;
        let own = match below(own)? {
            Some(own) => own,
            None => self.open_view(Vec::new())?,
        };
        Ok((from, to, own))
    }

    fn open_view(&self, levels: Vec<ViewLevel>) -> DriverResult<LayerView> {
        let mount = ViewMount { at: PathBuf::new(), levels };
        LayerView::open(&[mount], self.store.marks()).map_err(layer_error("look at files"))
    }
}

fn level(below: &Path) -> impl Fn(PathBuf) -> ViewLevel {
    let below = below.to_owned();
    move |root| ViewLevel { root, below: below.clone() }
}

fn apply_error(err: WorkspaceError) -> DriverError {
    match err {
        WorkspaceError::Busy { .. }
        | WorkspaceError::Changed { .. }
        | WorkspaceError::Restless
        | WorkspaceError::Gone => DriverError::InUse { what: err.to_string() },
        WorkspaceError::Partial { ref source, .. }
            if matches!(**source, WorkspaceError::Changed { .. }) =>
        {
            DriverError::InUse { what: format!("{err}: {source}") }
        }
        WorkspaceError::Partial { .. } => failed("apply everything")(err),
        WorkspaceError::Missing { .. } => DriverError::FileMissing { what: err.to_string() },
        WorkspaceError::Refused { .. } => invalid(err.to_string()),
        WorkspaceError::Io { operation, path, source } => {
            DriverError::Io { operation, path, source }
        }
        WorkspaceError::Layer(LayerError::Unreadable { path }) => DriverError::Unreadable { path },
        WorkspaceError::Layer(err) => failed("look at files")(err),
    }
}
