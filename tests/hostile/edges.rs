//! Models, templates, cluster files and connections that are wrong on purpose.
