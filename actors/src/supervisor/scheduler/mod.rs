//! Which context and which job begins next, and on which hosts. What a failure means is `rules`.

pub mod assign;
pub mod dispatch;
pub mod waiting;
