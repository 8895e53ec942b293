//! Which context and which job begins next, and on which hosts. What a failure means is `rules`.

pub mod advance;
pub mod dispatch;
pub mod encode;
pub mod generate;
pub mod limits;
pub mod waiting;
