//! `ps`: the sandboxes.

use forkpoint_core::{
    Error, catalog::SandboxQuery, driver::SandboxUsage, engine::SandboxView, label::Labels,
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::PsArgs,
    output::{
        human::{age, left, size},
        record::{SandboxJson, native_name, shown, state},
        table::{Column, Table},
    },
};

/// What is asked for at once: the catalog serves others too.
const PAGE: usize = 500;

#[derive(Serialize)]
struct Listing<'a> {
    sandboxes: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    sandbox: SandboxJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<SandboxUsage>,
}

pub(super) async fn ps(app: &App, args: &PsArgs) -> Outcome {
    let views = all(app, Labels::new(args.labels.clone())?).await?;
    for view in &views {
        if let Err(err) = &view.status {
            app.out.detail(format!("sandbox `{}`: {}", shown(&view.record), err.chain()));
        }
    }
    let mut usages = Vec::new();
    for view in &views {
        usages.push(match args.usage {
            true => Some(usage(app, view).await),
            false => None,
        });
    }
    if app.out.json {
        let row = |(view, usage)| Row { sandbox: SandboxJson::from(view), usage };
        app.out.json(&Listing { sandboxes: views.iter().zip(usages).map(row).collect() })?;
    } else if app.out.quiet {
        for view in &views {
            app.out.text(&view.record.id.to_string())?;
        }
    } else if views.is_empty() {
        app.out.note("no sandboxes: `forkpoint create --name NAME` makes one");
    } else {
        app.out.text(&table(app, &views, &usages))?;
    }
    Ok(Exit::DONE)
}

/// Unknown where the driver cannot tell: one that cannot be asked is no reason to list none.
async fn usage(app: &App, view: &SandboxView) -> SandboxUsage {
    let reference = format!("{}:{}", view.record.driver, view.record.id);
    app.engine.usage(&reference).await.unwrap_or_else(|err| {
        app.out.detail(format!("sandbox `{}`: {}", shown(&view.record), err.chain()));
        SandboxUsage::default()
    })
}

/// Every sandbox, newest last.
pub(super) async fn all(app: &App, labels: Labels) -> Result<Vec<SandboxView>, Error> {
    let mut query = SandboxQuery { labels, limit: Some(PAGE), ..SandboxQuery::default() };
    let mut views = Vec::new();
    loop {
        let page = app.engine.sandboxes(&query).await?;
        views.extend(page.items);
        query.after = page.next;
        if query.after.is_none() {
            return Ok(views);
        }
    }
}

const COLUMNS: [Column; 6] = [
    Column::Shrinks("NAME"),
    Column::Whole("STATE"),
    Column::Shrinks("TEMPLATE"),
    Column::Shrinks("HEAD"),
    Column::Number("AGE"),
    Column::Whole("DRIVER"),
];

const USAGE: [Column; 4] = [
    Column::Number("DISK"),
    Column::Number("MEMORY"),
    Column::Number("PROCESSES"),
    Column::Number("CPU"),
];

fn table(app: &App, views: &[SandboxView], usages: &[Option<SandboxUsage>]) -> String {
    let with_usage = usages.iter().any(Option::is_some);
    let with_end = views.iter().any(|view| view.record.expires.is_some());
    let with_native = views.iter().any(|view| native_name(&view.record).is_some());
    let native = with_native.then_some(Column::Shrinks("NATIVE"));
    let end = with_end.then_some(Column::Number("LEFT"));
    let usage = USAGE.into_iter().filter(|_| with_usage);
    let mut table = Table::new(COLUMNS.into_iter().chain(native).chain(end).chain(usage));
    let now = app.now();
    for (view, usage) in views.iter().zip(usages) {
        let record = &view.record;
        let cells = [
            shown(record),
            state(view).to_owned(),
            record.spec.template.to_string(),
            record.head.map_or_else(|| "-".to_owned(), |head| head.to_string()),
            age(record.created, now),
            record.driver.clone(),
        ];
        let expires = record.expires.map_or_else(|| "-".to_owned(), |at| left(at, now));
        let end = with_end.then_some(expires);
        let native = with_native.then(|| native_name(record).unwrap_or("-").to_owned());
        table.add(
            cells.into_iter().chain(native).chain(end).chain(usage.iter().flat_map(usage_cells)),
        );
    }
    let paint = app.out.paint;
    table.render(app.out.width, paint, |column, text| match (column, text) {
        ("NAME", _) => Some(paint.bold(text)),
        ("STATE", "running") => Some(paint.green(text)),
        ("STATE", "paused" | "stopped") => Some(paint.yellow(text)),
        ("STATE", _) => Some(paint.red(text)),
        _ => None,
    })
}

fn usage_cells(usage: &SandboxUsage) -> [String; 4] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        or_dash(usage.disk_bytes.map(size)),
        or_dash(usage.memory_bytes.map(size)),
        or_dash(usage.processes.map(|count| count.to_string())),
        or_dash(usage.cpu_ms.map(|ms| format!("{}.{:02}s", ms / 1000, ms % 1000 / 10))),
    ]
}
