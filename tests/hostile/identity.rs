//! Members that claim to be somebody else, and what each role may say to whom.
