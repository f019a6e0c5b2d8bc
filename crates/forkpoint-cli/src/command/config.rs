//! `config`: what was decided beforehand, and where.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::{Exit, Outcome};
use crate::{
    args::{ConfigArgs, ConfigVerb, GlobalArgs},
    config::{Config, Place, Row, candidates},
    fail::{About, Failure},
    output::{
        Output,
        table::{Column, Table},
    },
    wire,
};

#[derive(Serialize)]
struct Shown {
    settings: Vec<Row>,
}

#[derive(Serialize)]
struct Files {
    files: Vec<FileJson>,
}

#[derive(Serialize)]
struct FileJson {
    path: PathBuf,
    exists: bool,
}

pub(crate) fn config(out: &Output, args: &ConfigArgs, global: &GlobalArgs) -> Outcome {
    match args.verb {
        ConfigVerb::Show => show(out, global),
        ConfigVerb::Path => path(out, global),
    }
}

fn show(out: &Output, global: &GlobalArgs) -> Outcome {
    let config = Config::load(global).map_err(|err| Failure::new(err, About::Config))?;
    // Without a home there is none, and that is no reason to show nothing.
    let data = wire::data_dir(global, &config).ok();
    let rows = config.rows(global, data.as_deref());
    if out.json {
        out.json(&Shown { settings: rows })?;
        return Ok(Exit::DONE);
    }
    let mut table =
        Table::new([Column::Whole("KEY"), Column::Shrinks("VALUE"), Column::Shrinks("FROM")]);
    for row in &rows {
        let origin = row.origin.clone().unwrap_or_else(|| "default".to_owned());
        table.add([row.key.to_owned(), written(&row.value), origin]);
    }
    let paint = out.paint;
    out.text(&table.render(out.width, paint, |column, text| match (column, text) {
        ("KEY", _) => Some(paint.bold(text)),
        ("FROM", "default") => Some(paint.dim(text)),
        _ => None,
    }))?;
    Ok(Exit::DONE)
}

fn written(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(written).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn path(out: &Output, global: &GlobalArgs) -> Outcome {
    let all = candidates(global);
    if out.json {
        let file = |(_, path): (Place, PathBuf)| FileJson { exists: path.exists(), path };
        out.json(&Files { files: all.into_iter().map(file).collect() })?;
        return Ok(Exit::DONE);
    }
    let there: Vec<&PathBuf> =
        all.iter().map(|(_, path)| path).filter(|path| path.exists()).collect();
    for path in &there {
        out.text(&path.display().to_string())?;
    }
    if there.is_empty() {
        let own = |(place, _): &&(Place, PathBuf)| matches!(place, Place::Named | Place::User);
        match all.iter().find(own) {
            Some((_, path)) => {
                out.text(&path.display().to_string())?;
                out.note("there is no configuration: this is where yours would be");
            }
            None => out.note("no configuration is read"),
        }
    }
    Ok(Exit::DONE)
}
