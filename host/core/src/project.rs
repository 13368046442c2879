//! The envelope of an object, read without decoding the rest.
