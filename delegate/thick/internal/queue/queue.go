// Package queue keeps the DELs that a daemon was not there to do, as files in a
// directory, until it is. Writers are shims, many at once; the reader is the
// daemon. A file that is there once Put has returned is there after a loss of
// power.
//
// That no DEL is left behind takes both sides: a shim that could not connect
// takes the shared lock and tries again, and only then puts its DEL down; the
// daemon listens first, then takes the exclusive lock and reads.
package queue
