// Package inroot looks at files as a process that has another root directory
// does: a daemon in a container is told paths of its host, and sees the host
// below a directory of its own.
package inroot

// With calls do with a path that leads to what is at path for a process whose
// root directory is root, and returns what do returns. With an empty root it
// is path itself, whether or not there is anything. Else the file is there, do
// must not keep its path, and no link of path has led out of root; in a proc
// file system of root the network namespaces of processes are found as well,
// and no other link that the kernel itself follows.
//
// The error is an [*io/fs.PathError] of path when there is no such file, and
// [errors.ErrUnsupported] on systems other than Linux when root is not empty.
// It may be called from several goroutines, and changes nothing of the
// process.
func With(root, path string, do func(path string) error) error {
	if root == "" {
		return do(path)
	}
	return with(root, path, do)
}
