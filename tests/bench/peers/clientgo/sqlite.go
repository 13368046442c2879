//go:build sqlite

package main

// Where Debian's driver is installed.
import _ "github.com/mattn/go-sqlite3"
