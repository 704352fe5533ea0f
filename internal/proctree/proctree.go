// Package proctree kills a process together with its descendants, also those
// that have left its process group.
//
// The parent of a process is all that tells whose descendant it is. So those
// whose parent has exited are not found: they are the children of another
// process by then. A [Tree] is for who wants to reach them all the same, and has
// looked before.
//
// It works on Linux, where proc(5) tells the children of a process.
package proctree
