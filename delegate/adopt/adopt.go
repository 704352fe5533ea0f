// Package adopt finds the attachments that other programs have made, so that a
// [lifecycle.Manager] can take them over, and gives attachments back to them.
//
// A meta-plugin that is installed on a node in use has no record of the
// containers that are there: its DEL would remove nothing of them. Others have
// recorded these containers: libcni for the container runtime, Multus, and
// flannel's plugin. A [Node] reads their files. [Take] has a Manager record what
// was read. Both may be repeated at any time: what is recorded already is left
// alone.
//
// Nothing is written but by the Manager and by [GiveBack]. What cannot be read,
// or not be understood, is an error about one file and hides no other. A file is
// never waited for, and nothing in one can make the package panic.
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

// A Node is where other programs have recorded attachments, and which of these
// a meta-plugin has come to be in charge of. Its fields must not change while it
// is in use; it may then be used by any number of goroutines.
type Node struct {
	// Root, when not empty, is the root directory in which all paths are
	// looked at: [lifecycle.Manager.Root].
	Root string

	// Network is the name of the meta-plugin's own network, under which the
	// attachments are to be recorded.
	Network string

	// Primary are the names of the networks that the runtime has attached
	// containers to and that Network has taken the place of. Attachments to
	// other networks are somebody else's.
	Primary []string

	// Own are the types of the meta-plugins that attachments are recorded of
	// elsewhere: this one, and Multus. A network with such a plugin is none of
	// libcni's to take over.
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

// A Verdict is what has become of an attachment that was found.
type Verdict string

// The verdicts.
const (
	Adopted   Verdict = "adopted"   // it has been recorded
	Adoptable Verdict = "adoptable" // it would be recorded, if it were not a dry run
	Recorded  Verdict = "recorded"  // there is a record of it, or it has been removed meanwhile
	Skipped   Verdict = "skipped"   // see Outcome.Err
)

// An Outcome is what [Take] has done about one attachment, or could not.
type Outcome struct {
	Adoption lifecycle.Adoption // zero where a file could not be understood
	Verdict  Verdict
	Err      error // why it was skipped
}

// Take has m record each attachment of found, and returns what became of each,
// in order. With dryRun nothing is recorded. When an attachment cannot be
// recorded, Take goes on with the next. When ctx ends, Take returns what it has
// done and one more Outcome, with ctx's error.
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

// An Error is a file, or a directory, that nothing could be taken over from.
type Error struct {
	Path string
	Err  error
}

// Error returns "path: why". It has nothing of the configurations in the file
// but names.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns the code of the cause where it has one, and else 5, an I/O
// failure.
func (e *Error) CNICode() uint {
	var coded interface{ CNICode() uint }
	if errors.As(e.Err, &coded) {
		return coded.CNICode()
	}
	return 5
}
