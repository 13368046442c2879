//go:build mysql

package main

// Where Debian's driver is installed.
import _ "github.com/go-sql-driver/mysql"
