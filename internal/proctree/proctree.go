// Package proctree kills a process together with its descendants, also those
// that have left its process group.
//
// Only its parent links a process to its ancestors. When the parent exits, the
// process becomes the child of another one, and Kill does not find it. To reach
// such processes, take a [Tree] before, and kill that.
//
// It works on Linux, where proc(5) lists the children of a process.
package proctree
