//! Sets of addresses: ranges in order that do not touch one another's insides.

pub(crate) type Range = (u64, u64);

pub(crate) fn len(ranges: &[Range]) -> u64 {
    ranges.iter().map(|(start, end)| end - start).sum()
}

/// What is in `all` and not in `less`.
pub(crate) fn without(all: &[Range], less: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    let mut first = 0;
    for &(mut start, end) in all {
        while less.get(first).is_some_and(|range| range.1 <= start) {
            first += 1;
        }
        for range in less[first..].iter().take_while(|range| range.0 < end) {
            if start < range.0 {
                left.push((start, range.0));
            }
            start = start.max(range.1);
        }
        if start < end {
            left.push((start, end));
        }
    }
    left
}

/// What is in both.
pub(crate) fn both(one: &[Range], other: &[Range]) -> Vec<Range> {
    without(one, &without(one, other))
}

/// What is in either.
pub(crate) fn either(one: &[Range], other: &[Range]) -> Vec<Range> {
    let mut all: Vec<Range> = one.iter().chain(other).copied().collect();
    all.sort_unstable();
    let mut joined: Vec<Range> = Vec::with_capacity(all.len());
    for (start, end) in all {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set() -> impl Strategy<Value = Vec<Range>> {
        proptest::collection::btree_set(0u64..64, 0..40).prop_map(|numbers| {
            either(&numbers.into_iter().map(|number| (number, number + 1)).collect::<Vec<_>>(), &[])
        })
    }

    fn has(ranges: &[Range], number: u64) -> bool {
        ranges.iter().any(|(start, end)| (*start..*end).contains(&number))
    }

    proptest! {
        #[test]
        fn they_are_sets(one in set(), other in set()) {
            for number in 0..65 {
                let (in_one, in_other) = (has(&one, number), has(&other, number));
                prop_assert_eq!(has(&without(&one, &other), number), in_one && !in_other);
                prop_assert_eq!(has(&both(&one, &other), number), in_one && in_other);
                prop_assert_eq!(has(&either(&one, &other), number), in_one || in_other);
            }
            prop_assert_eq!(len(&one), (0..65).filter(|number| has(&one, *number)).count() as u64);
        }
    }
}
