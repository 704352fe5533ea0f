package autoconf

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxLinks is how many symbolic links may lead to one file; Linux has 40.
const maxLinks = 40

// maxSubdirectories is how many sub-directories are watched; what changes in
// others is seen at the next resync.
const maxSubdirectories = 100

// watched is which directories to watch, without links in their paths, and
// what in them matters.
type watched map[string]*matters

// matters is what in a directory is of interest.
type matters struct {
	all   bool            // everything
	confs bool            // files that end in .conf
	names map[string]bool // these
}

// at returns what matters in dir, to be added to.
func (w watched) at(dir string) *matters {
	if w[dir] == nil {
		w[dir] = &matters{names: map[string]bool{}}
	}
	return w[dir]
}

// wants reports whether an event about file matters. One about a watched
// directory itself does.
func (w watched) wants(file string) bool {
	if w[file] != nil {
		return true
	}
	m, name := w[filepath.Dir(file)], filepath.Base(file)
	return m != nil && (m.all || m.names[name] || m.confs && path.Ext(name) == ".conf")
}

// follow adds every place that decides what the absolute path file in root leads
// to: the directory entries that are links along the way, and the last entry
// unless it is a directory, whose own watch reports its removal. Where an entry is
// missing, follow adds that and stops. It returns the last place, and whether
// something is there. No link leads out of root.
func (w watched) follow(root, file string) (last string, there bool) {
	volume := filepath.VolumeName(file)
	root = cmp.Or(root, volume+string(filepath.Separator))
	at, rest := root, split(filepath.Clean(file)[len(volume):])
	links := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			if at != root {
				at = filepath.Dir(at)
			}
			continue
		}
		entry := filepath.Join(at, name)
		info, err := os.Lstat(entry)
		if err != nil {
			w.at(at).names[name] = true
			return entry, false
		}
		if info.Mode()&os.ModeSymlink == 0 {
			if !info.IsDir() {
				w.at(at).names[name] = true
				return entry, len(rest) == 0
			}
			at = entry
			continue
		}
		w.at(at).names[name] = true
		target, err := os.Readlink(entry)
		if links++; err != nil || links > maxLinks {
			return entry, false
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(split(filepath.ToSlash(target)), rest...)
	}
	return at, true
}

// split returns the elements of a path. "." is none; ".." is one, which only
// the file system can tell the meaning of.
func split(file string) []string {
	var parts []string
	for part := range strings.SplitSeq(filepath.ToSlash(file), "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// places returns what to watch for a manager of the directory dir, the directory
// outDir of the published file, and the readiness file ready, if any, all in root.
// It also returns the directory entry of the readiness file: an event about the
// entry tells that the file was removed, even if it has been made again since.
func places(root, dir, outDir, ready string, considers func(name string) bool) (w watched, readyEntry string) {
	w = watched{}
	w.watchDir(root, dir, considers)
	if real, ok := w.follow(root, outDir); ok {
		w.at(real).all = true
	}
	if ready == "" {
		return w, ""
	}
	w.follow(root, ready)
	// Not what a link leads to: that goes when a ConfigMap is replaced.
	if parent, ok := (watched{}).follow(root, filepath.Dir(ready)); ok {
		readyEntry = filepath.Join(parent, filepath.Base(ready))
	}
	return w, readyEntry
}

// watchDir adds a directory of configurations: all in it, what its links lead
// to, and the plugins in its sub-directories.
func (w watched) watchDir(root, dir string, considers func(name string) bool) {
	real, ok := w.follow(root, dir)
	if !ok {
		return
	}
	w.at(real).all = true
	entries, _ := os.ReadDir(real) // what could be listed will do
	subdirectories := 0
	for _, entry := range entries {
		name := entry.Name()
		link := entry.Type()&os.ModeSymlink != 0
		switch {
		case link && considers(name):
			w.follow(root, filepath.Join(dir, name))
		case (link || entry.IsDir()) && subdirectories < maxSubdirectories:
			if sub, ok := (watched{}).follow(root, filepath.Join(dir, name)); ok && isDir(sub) {
				w.follow(root, filepath.Join(dir, name))
				w.at(sub).confs = true
				subdirectories++
			}
		}
	}
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}
