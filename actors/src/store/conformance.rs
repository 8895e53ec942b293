//! What every [`StateStore`] must do, as a test that runs over any of them. What befalls files and disks is each store's own to
//! test.

use super::{Change, Entry, MAX_KEY_BYTES, StateStore, Table};

/// Runs over a store that is empty at first. `open` opens it anew, as each start of a supervisor does; the store that was open
/// before is dropped by then.
///
/// # Panics
/// When the store does not do what it owes.
pub fn check<S: StateStore>(open: impl Fn() -> S) {
    assert_eq!(load(&mut open()), [], "it is to be empty at first");
    let large = vec![7; 5 << 20];
    let mut store = open();
    apply(&mut store, &[put(Table::Jobs, "b", b"1"), put(Table::Jobs, "a", &large), put(Table::Cluster, "z", b"")]);
    apply(
        &mut store,
        &[
            put(Table::Jobs, "b", b"2"),
            remove(Table::Jobs, "nobody"),
            put(Table::Hosts, "h", b"up"),
            remove(Table::Hosts, "h"),
            put(Table::Sessions, "a/\u{fc}", b"3"),
            put(Table::Ids, "b", b"4"),
        ],
    );
    apply(&mut store, &[]);
    let expected = [
        entry(Table::Cluster, "z", b""),
        entry(Table::Ids, "b", b"4"),
        entry(Table::Jobs, "a", &large),
        entry(Table::Jobs, "b", b"2"),
        entry(Table::Sessions, "a/\u{fc}", b"3"),
    ];
    assert_eq!(load(&mut store), expected, "the last change of a key counts");
    drop(store);
    assert_eq!(load(&mut open()), expected, "what is applied survives who applied it");

    let mut store = open();
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    let refused = store.apply(&[put(Table::Jobs, "c", b"4"), remove(Table::Jobs, "a"), put(Table::Jobs, &long, b"")]);
    assert_eq!(refused.map_err(|error| error.code()), Err("key_too_long"));
    assert_eq!(load(&mut store), expected, "a refused transaction left something");
    apply(&mut store, &[remove(Table::Jobs, "a")]);
    assert_eq!(load(&mut store).len(), expected.len() - 1, "a store goes on after it refused something");
}

fn load(store: &mut impl StateStore) -> Vec<Entry> {
    store.load().unwrap_or_else(|error| panic!("load: {error}"))
}

fn apply(store: &mut impl StateStore, changes: &[Change]) {
    store.apply(changes).unwrap_or_else(|error| panic!("apply: {error}"));
}

fn put(table: Table, key: &str, value: &[u8]) -> Change {
    Change::Put { table, key: key.into(), value: value.to_vec() }
}

fn remove(table: Table, key: &str) -> Change {
    Change::Remove { table, key: key.into() }
}

fn entry(table: Table, key: &str, value: &[u8]) -> Entry {
    Entry { table, key: key.into(), value: value.to_vec() }
}
