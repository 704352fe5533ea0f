// Package power shows what a loss of power leaves of files that were written through a
// file system. A Disk is a block device in memory: a file that FUSE serves, attached to a
// loop device. It keeps a log of all that the file system writes and flushes. Of the log
// Crashes makes what a real disk may hold after a loss of power at any moment.
package power
