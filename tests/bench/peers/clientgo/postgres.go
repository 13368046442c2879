//go:build postgres

package main

// Where Debian's driver is installed.
import _ "github.com/lib/pq"
