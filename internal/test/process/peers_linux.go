package process

import (
	"errors"
	"flag"
	"path/filepath"
	"strings"
)

// A Peer is another project's plugin, to compare ours with.
type Peer struct{ Name, Path string }

// Peers defines the flag -peer NAME=PATH, which may be given several times, and returns its
// values. Call it before TestMain.
func Peers() *[]Peer {
	var all []Peer
	flag.Func("peer", "a plugin of others to compare with, as `NAME=PATH`; may be given several times", func(text string) error {
		name, path, _ := strings.Cut(text, "=")
		if name == "" || !filepath.IsAbs(path) {
			return errors.New("want NAME=PATH, with an absolute path")
		}
		all = append(all, Peer{name, path})
		return nil
	})
	return &all
}
