package lifecycle

import (
	"io/fs"
	"os"
	"reflect"
	"slices"

	"github.com/metacni/metacni/internal/inroot"
)

// fileMachine is a machine on which a file stands for each network namespace. The kernel knows a
// namespace as long as its file is at its path.
type fileMachine struct {
	root      string
	bootID    string
	host      []hostLink
	container []hostLink // interfaces in each container
	dying     []int      // namespaces of peers
	otherHost bool       // this process runs in another network namespace than before
	plain     string     // a path at which the file is no namespace
}

func (m *fileMachine) identify(root, path string) netns {
	n := netns{Path: path}
	_ = inroot.With(root, path, func(path string) error {
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && path != m.plain {
			n.Dev, n.Inode, n.Boot = number(info, "Dev"), number(info, "Ino"), m.bootID
		}
		return err
	})
	if path == ownNetNS {
		n.Dev, n.Inode = 0, 1
		if m.otherHost {
			n.Inode = 2
		}
	}
	return n
}

// number returns a field of what stat says of a file, where it has that.
func number(info fs.FileInfo, name string) uint64 {
	v := reflect.Indirect(reflect.ValueOf(info.Sys())).FieldByName(name)
	if !v.IsValid() || !v.CanUint() {
		return 0
	}
	return v.Uint()
}

func (m *fileMachine) occupied(_, path string) bool { return path != "" && path == m.plain }
func (m *fileMachine) own(string) []netns           { return nil }
func (m *fileMachine) boot() string                 { return m.bootID }

func (m *fileMachine) ask(n netns) Life {
	if now := m.identify(m.root, n.Path); now.Dev == n.Dev && now.Inode == n.Inode {
		return Alive
	}
	return Dead
}

func (m *fileMachine) scan(string, []netns) scanned { return scanned{} }

func (m *fileMachine) removeInside(_, _, mac string) {
	m.container = slices.DeleteFunc(m.container, func(l hostLink) bool { return l.mac == mac })
}
func (m *fileMachine) ended(id int) bool { return slices.Contains(m.dying, id) }
func (m *fileMachine) links(_, path string) ([]hostLink, error) {
	if path == "" {
		return m.host, nil
	}
	return m.container, nil
}
