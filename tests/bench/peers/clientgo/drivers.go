//go:build databases

package main

// Compiling SQLite takes longer than everything else, and most measurements need no database.
import (
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/lib/pq"
	_ "github.com/mattn/go-sqlite3"
)
