//! A line that breaks, wherever it does: what came of a tree is not taken for all of it.

use bytes::Bytes;
use forkpoint_core::{
    driver::{Artifact, Driver as _, DriverError},
    part::{Extent, Part, PartContent, PartFormat, TreeItem, TreeNode, TreeStream},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{super::scene::*, kept, nothing_more_than};

/// Files with holes in front, in the middle, at the end and nothing else, one of many chunks, names, and what is gone.
const FILES: &str = "
cd /srv; mkdir -p d/e; echo text > d/a; ln d/a d/e/b; ln -s a d/l; mkfifo d/f; : > empty; rm /etc/issue
head -c 2500000 /dev/urandom > large
truncate -s 300000 holes; printf data | dd of=holes bs=1 seek=100000 conv=notrunc status=none
truncate -s 200000 nothing; truncate -s 100000 front; echo end >> front
";

async fn items(scene: &Scene, artifact: &Artifact) -> TreeStream {
    let parts = scene.driver.export(artifact).await.unwrap();
    let tree = parts.into_iter().find(|part| part.format == PartFormat::tree()).unwrap();
    let PartContent::Tree(items) = tree.content else { panic!("a tree is one") };
    items
}

fn part(items: TreeStream) -> Vec<Part> {
    vec![Part { format: PartFormat::tree(), content: PartContent::Tree(items) }]
}

/// What is said of a tree that is not all there.
async fn told(scene: &Scene, items: TreeStream) -> String {
    match scene.driver.import(new_snapshot(), part(items)).await {
        Err(err @ (DriverError::Damaged { .. } | DriverError::Invalid { .. })) => with_causes(&err),
        other => panic!("{other:?}"),
    }
}

async fn extents(item: TreeItem) -> Vec<Extent> {
    match item {
        TreeItem::Entry(entry) => match entry.node {
            TreeNode::File { data, .. } => data.try_collect().await.unwrap(),
            _ => Vec::new(),
        },
        TreeItem::End { .. } => Vec::new(),
    }
}

/// The tree with other data of one entry.
fn with_data(items: TreeStream, which: usize, data: Vec<Extent>) -> TreeStream {
    let mut data = Some(data);
    let changed = items.enumerate().map(move |(number, item)| match item? {
        TreeItem::Entry(mut entry) if number == which => {
            if let TreeNode::File { data: of, .. } = &mut entry.node {
                let data = data.take().unwrap_or_default();
                *of = stream::iter(data.into_iter().map(Ok)).boxed();
            }
            Ok(TreeItem::Entry(entry))
        }
        item => Ok(item),
    });
    changed.boxed()
}

#[test]
fn a_tree_that_is_cut_at_any_border_is_refused() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, FILES).await;
        let artifact = seal(&*sandbox).await;
        let before = kept(&scene.root());
        let all: Vec<TreeItem> = items(&scene, &artifact).await.try_collect().await.unwrap();
        assert!(all.len() > 12, "{all:?}");
        let last = all.len() - 1;
        assert!(matches!(all[last], TreeItem::End { entries } if entries == last as u64));
        for cut in 0..=last {
            let said = told(&scene, items(&scene, &artifact).await.take(cut).boxed()).await;
            assert!(said.contains(&format!("cut after {cut} entries")), "{cut}: {said}");
        }
        // One that was lost on the way; the first ones are parents, and others.
        for lost in 0..last {
            let few = items(&scene, &artifact).await.enumerate();
            let few = few.filter(move |(number, _)| std::future::ready(*number != lost));
            let said = told(&scene, few.map(|(_, item)| item).boxed()).await;
            let why = format!("had {last} entries, and {} came", last - 1);
            assert!(said.contains(&why) || said.contains("did not come"), "{lost}: {said}");
        }
        let more = || stream::iter([Ok(TreeItem::End { entries: last as u64 })]);
        let twice = items(&scene, &artifact).await.chain(more());
        assert!(told(&scene, twice.boxed()).await.contains("behind its end"));
        nothing_more_than(&scene, &before);
        let whole = items(&scene, &artifact).await;
        let came = scene.driver.import(new_snapshot(), part(whole)).await.unwrap();
        let sum = "cd /srv; sha256sum d/a d/e/b empty large holes nothing front";
        let copy = scene.restore(&came).await;
        assert_eq!(sh(&*copy, sum).await, sh(&*sandbox, sum).await);
    });
}

/// In a file too: between pieces of data, in one, and before a hole that is its end.
#[test]
fn data_that_are_cut_anywhere_are_refused() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, FILES).await;
        let artifact = seal(&*sandbox).await;
        let before = kept(&scene.root());
        let all: Vec<TreeItem> = items(&scene, &artifact).await.try_collect().await.unwrap();
        let mut tried = 0;
        for (which, item) in all.into_iter().enumerate() {
            let data = extents(item).await;
            for (number, extent) in data.iter().enumerate() {
                let len = extent.bytes.len();
                let mut places = vec![0];
                // Random enough, and the same each time.
                places.extend((len > 1).then(|| 1 + (which * 7919 + number * 104_729) % (len - 1)));
                places.extend((len > 1).then(|| len - 1));
                for place in places {
                    let mut cut = data[..number].to_vec();
                    if place > 0 {
                        let bytes = Bytes::copy_from_slice(&extent.bytes[..place]);
                        cut.push(Extent { offset: extent.offset, bytes });
                    }
                    let items = items(&scene, &artifact).await;
                    let said = told(&scene, with_data(items, which, cut)).await;
                    assert!(said.contains("its data are cut after"), "{which} {number}: {said}");
                    tried += 1;
                }
            }
        }
        assert!(tried > 12, "{tried}");
        nothing_more_than(&scene, &before);
    });
}
