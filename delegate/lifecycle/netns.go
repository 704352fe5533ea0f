package lifecycle

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/internal/rawjson"
)

// netns is a network namespace: a path, and the identity of the namespace that was there.
// The kernel gives device and inode to a new namespace as soon as the old one has ended, but
// no number twice in one boot.
type netns struct {
	Path   string `json:"path,omitempty"`
	Dev    uint64 `json:"dev,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`  // zero: no network namespace was seen
	Number string `json:"number,omitempty"` // "id/N" of NS_GET_ID or "cookie/N" of SO_NETNS_COOKIE, if the kernel tells
	Boot   string `json:"boot,omitempty"`   // ID of the boot when this was recorded, if procfs tells
	Unique string `json:"unique,omitempty"` // Boot and Number, joined by "/", for releases that read only this

	rest rawjson.Rest
}

// UnmarshalJSON keeps what a later release has written.
func (n *netns) UnmarshalJSON(text []byte) error {
	type plain netns
	return rawjson.Decode(text, (*plain)(n), &n.rest)
}

// MarshalJSON writes all of n.
func (n netns) MarshalJSON() ([]byte, error) {
	type plain netns
	return rawjson.Encode(plain(n), n.rest)
}

// number returns Number, or that of a record in which only Unique has it.
func (n netns) number() string {
	if n.Number == "" && n.Unique != "" {
		_, number, _ := strings.Cut(n.Unique, "/")
		return number
	}
	return n.Number
}

// inBoot returns n as it is recorded in the boot with this ID.
func (n netns) inBoot(boot string) netns {
	n.Boot = boot
	if n.Unique = ""; boot != "" && n.Number != "" {
		n.Unique = boot + "/" + n.Number
	}
	return n
}

// in reports whether n was certainly recorded in the boot with this ID. Unique suffices: what is
// mounted over the boot's ID in a container is not the ID of the machine's boot.
func (n netns) in(boot string) bool {
	return boot != "" && (n.Boot == boot || strings.HasPrefix(n.Unique, boot+"/"))
}

// before reports whether n was certainly recorded in an earlier boot than the one with this ID.
func (n netns) before(boot string) bool { return boot != "" && n.Boot != "" && n.Boot != boot }

// known reports whether n identifies a network namespace. A device other than nsfs is that of
// another kind of file, which earlier releases recorded too, but without a number.
func (n netns) known(nsfs func() uint64) bool {
	return n.Inode != 0 && (n.number() != "" || nsfs() == 0 || n.Dev == nsfs())
}

// A likeness says whether two identities are of the same namespace.
type likeness int

const (
	unsure likeness = iota
	same
	different
)

// compare compares n, which is recorded, with now, which exists in the boot with this ID.
func (n netns) compare(now netns, boot string) likeness {
	mine, its := n.number(), now.number()
	switch {
	case n.before(boot): // each boot begins its inodes and numbers anew
		return different
	case n.Inode == 0 || now.Inode == 0 || n.Dev != now.Dev && mine == "":
		return unsure
	case n.Inode != now.Inode || n.Dev != now.Dev: // nsfs has one device in a boot
		return different
	case mine == "" || mine == its:
		return same
	case its == "":
		return unsure
	}
	kind, number, _ := strings.Cut(mine, "/")
	itsKind, itsNumber, _ := strings.Cut(its, "/")
	switch {
	case kind == itsKind:
		return different
	case !n.in(boot): // numbers of two kinds can only be compared in one boot
		return unsure
	case number == itsNumber:
		return same
	}
	return different
}

// there says what exists at path in root: nil if something does, [fs.ErrNotExist] only if nothing
// does for certain.
func there(root, path string) error {
	if _, err := os.Stat(cmp.Or(root, "/")); err != nil {
		return errors.New("there is no root directory") // so nothing in it can be seen
	}
	return inroot.With(root, path, func(path string) error { _, err := os.Stat(path); return err })
}

// namesIn returns [ifname.Taken] of the network namespace at path in root. A path
// that does not exist, is not a namespace or must not be entered by an ordinary
// user has no names: the plugins will report it.
func namesIn(root, path string) (names []string, err error) {
	err = inroot.With(root, path, func(path string) error {
		if _, err := os.Stat(path); err != nil {
			return fs.ErrNotExist
		}
		names, err = ifname.Taken(path)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ifname.ErrNetNS) || errors.Is(err, errors.ErrUnsupported) || err != nil && os.Geteuid() != 0 {
		return nil, nil
	}
	if e := (*ifname.Error)(nil); errors.As(err, &e) {
		err = &ifname.Error{NetNS: path, Err: e.Err} // not the path by which it was reached
	}
	return names, err
}
