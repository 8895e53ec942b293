//! Disks that are full, folders that are open to others, clocks that jump.
