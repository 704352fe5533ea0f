// Package inroot resolves paths in another root directory. A daemon in a container
// gets paths of its host, and has the host's root directory mounted somewhere.
package inroot

// With calls do with a path of this process to the file that is at path for a
// process with the root directory root, and returns what do returns.
//
//   - With an empty root, do gets path itself, whether or not there is a file.
//   - Otherwise the file exists, and no link has led out of root. do must not keep
//     the path it gets.
//   - In a proc file system in root, With finds the network namespaces of
//     processes. It follows no other link that the kernel resolves by itself.
//
// The error is an [*io/fs.PathError] of path when there is no such file, and
// [errors.ErrUnsupported] on systems other than Linux when root is not empty.
// Goroutines may call With at the same time; it does not change the process.
func With(root, path string, do func(path string) error) error {
	if root == "" {
		return do(path)
	}
	return with(root, path, do)
}
