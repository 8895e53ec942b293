//! More work than the cluster can do at once.
