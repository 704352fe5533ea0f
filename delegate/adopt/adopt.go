// Package adopt finds the attachments that other programs have made, so that a
// [lifecycle.Manager] can take them over, and gives attachments back to them.
//
// A meta-plugin that is installed on a node in use has no record of the existing
// containers: its DEL would remove nothing of them. Other programs have recorded
// them: libcni for the container runtime, Multus, and flannel's plugin. A [Node]
// and a [Flannel] read their files. [Take] has a Manager record each attachment.
// Both can be repeated at any time: they leave alone what is recorded already.
//
// Only the Manager and [GiveBack] write files. A file that cannot be read or
// understood is one error and hides no other file. No file makes the package wait
// or panic.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

const (
	// DefaultCacheDir is where libcni keeps its cache for container runtimes.
	DefaultCacheDir = "/var/lib/cni"

	// DefaultMultusDir is where Multus keeps its state: its cniDir.
	DefaultMultusDir = "/var/lib/cni/multus"
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
	// "results" in it. Empty means that there is none.
	CacheDir string

	// MultusDir is Multus's cniDir. Empty means that there is none.
	MultusDir string
}

// Attachments lists what Multus has recorded in MultusDir, and then the
// attachments to the networks Primary in libcni's cache. What both have is
// listed twice: Multus's first, because it is complete. An error is an [*Error]
// about one file or directory and does not end the list.
//
// What Multus has of a container is one adoption with all its networks. The
// first is that of the runtime's interface. A network that Multus has attached
// later is among them. Multus records a container before it attaches it: while
// not all of the networks are attached, the container is an error until its
// record is five minutes old or its namespace is gone.
func (n Node) Attachments() iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		for _, list := range []iter.Seq2[lifecycle.Adoption, error]{n.multus(), n.libcni()} {
			for a, err := range list {
				if !yield(a, err) {
					return
				}
			}
		}
	}
}

// A Verdict says what [Take] has done about an attachment.
type Verdict string

// The verdicts.
const (
	Adopted   Verdict = "adopted"   // recorded
	Adoptable Verdict = "adoptable" // in a dry run: it would be recorded
	Recorded  Verdict = "recorded"  // nothing: there is a record, or the attachment has been removed
	Skipped   Verdict = "skipped"   // nothing, because of Outcome.Err
)

// An Outcome is what [Take] has done about one attachment.
type Outcome struct {
	Adoption lifecycle.Adoption // zero if a file could not be understood
	Verdict  Verdict
	Err      error // why it was skipped
}

// Take has m record each attachment of found, and returns an Outcome for each, in
// order. With dryRun it records nothing. When an attachment cannot be recorded,
// Take continues with the next. When ctx ends, Take stops, and the last Outcome has
// ctx's error.
func Take(ctx context.Context, m *lifecycle.Manager, found iter.Seq2[lifecycle.Adoption, error], dryRun bool) []Outcome {
	var done []Outcome
	adopt := m.Adopt
	if dryRun {
		adopt = recorded(ctx, m).adoptable
	}
	for a, err := range found {
		if ctx.Err() != nil {
			return append(done, Outcome{Verdict: Skipped, Err: ctx.Err()})
		}
		o := Outcome{Adoption: a, Verdict: Skipped, Err: err}
		if err == nil {
			adopted, err := adopt(ctx, a)
			switch {
			case err != nil:
				o.Err = err
			case !adopted:
				o.Verdict = Recorded
			case dryRun:
				o.Verdict = Adoptable
			default:
				o.Verdict = Adopted
			}
		}
		done = append(done, o)
	}
	return done
}

// known holds the recorded interfaces of each container. An interface has an
// error if its record could not be read.
type known map[string]map[string]error

// recorded lists what m has recorded.
func recorded(ctx context.Context, m *lifecycle.Manager) known {
	k := make(known)
	for r, err := range m.Records(ctx) {
		k.add(r.Key, err)
		for _, a := range r.Attached {
			k.add(scratch.Key{ContainerID: r.Key.ContainerID, IfName: a.IfName}, err)
		}
	}
	return k
}

func (k known) add(key scratch.Key, err error) {
	if k[key.ContainerID] == nil {
		k[key.ContainerID] = make(map[string]error)
	}
	k[key.ContainerID][key.IfName] = err
}

// adoptable is what [lifecycle.Manager.Adopt] would answer, as far as the records
// tell.
func (k known) adoptable(_ context.Context, a lifecycle.Adoption) (bool, error) {
	for _, err := range k[a.Key.ContainerID] {
		if err != nil {
			return false, err
		}
	}
	for _, d := range a.Attached {
		if _, there := k[a.Key.ContainerID][d.IfName]; there {
			return false, nil
		}
	}
	for _, d := range a.Attached {
		k.add(scratch.Key{ContainerID: a.Key.ContainerID, IfName: d.IfName}, nil)
	}
	return true, nil
}

// An Error reports a file or a directory that cannot be read or understood.
type Error struct {
	Path string
	Err  error
}

// Error returns "path: why". Of the configurations in the file it has only names.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the cause's code if it has one, otherwise 5, an I/O failure.
func (e *Error) CNICode() uint {
	var coded interface{ CNICode() uint }
	if errors.As(e.Err, &coded) {
		return coded.CNICode()
	}
	return 5
}
