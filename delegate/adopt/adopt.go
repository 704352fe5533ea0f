// Package adopt finds the attachments that other programs have made, so that
// [lifecycle.Manager.Adopt] can take them over, and gives attachments back to them.
//
// A meta-plugin that is installed on a node in use has no record of the existing
// containers: its DEL would remove nothing of them. Other programs have recorded
// them: libcni for the container runtime, Multus, and flannel's plugin. A [Node]
// and a [Flannel] read their files, of which Adopt makes records:
//
//	for a, err := range node.Attachments() {
//		if err == nil {
//			adopted, err = manager.Adopt(ctx, a)
//		}
//		...
//	}
//
// This can be repeated at any time: Adopt leaves alone what is recorded already.
//
// Only the Manager and [GiveBack] write files. A file that cannot be read or
// understood is one error and hides no other file. The error begins with the path and has
// the cause's CNI code, or 5. Of the configurations in the file it has only names. No file
// makes the package wait or panic.
package adopt

import (
	"iter"

	"github.com/metacni/metacni/delegate/lifecycle"
)

// A Node says where other programs have recorded attachments, and which of these
// the meta-plugin takes over. Goroutines may share a Node that none of them
// changes.
type Node struct {
	// Root, if not empty, is the root directory of the node as this process
	// sees it, as [lifecycle.Manager.Root]. All paths are paths of the node.
	Root string

	// Network is the name of the meta-plugin's own network. The attachments are
	// recorded under this name.
	Network string

	// Primary are the names of the networks that Network has replaced as the
	// runtime's network. Attachments to other networks are not taken over from
	// libcni's cache.
	Primary []string

	// Own are the types of meta-plugins that have records of their own: this
	// one, and Multus. A network with such a plugin is not taken over from
	// libcni's cache.
	Own []string

	// CacheDir is libcni's cache directory, the one with the directory
	// "results" in it: /var/lib/cni, unless the runtime has another. Empty means
	// that there is none.
	CacheDir string

	// MultusDir is the cniDir of Multus 3.7 or later, by default
	// /var/lib/cni/multus. Empty means
	// that there is none.
	MultusDir string
}

// Attachments lists what Multus has recorded in MultusDir, and then the
// attachments to the networks Primary in libcni's cache. What both have is
// listed twice: Multus's first, because it is complete. An error is about one
// file or directory and does not end the list.
//
// What Multus has of a container is one adoption with all its networks. The
// first is that of the runtime's interface. A network that Multus has attached
// later is among them. Multus records a container before it attaches it: while
// not all of the networks are attached, the container is an error until its
// record is five minutes old.
func (n Node) Attachments() iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		_ = n.multus(yield) && n.libcni(yield)
	}
}
