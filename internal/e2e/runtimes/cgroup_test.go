package runtimes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupPrefix begins the name of the parent of all pods' cgroups, before the ID of the
// process that runs the tests.
const cgroupPrefix = "metacni-runtimes-"

// cgroupRoot is where cgroups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// makeCgroups makes a cgroup with a name in all hierarchies, for cgroups of containers in it.
func makeCgroups(name string) error {
	for _, dir := range cgroups(name) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	control := cgroupRoot + "/cgroup.subtree_control" // version 2 only
	controllers, err := os.ReadFile(control)
	if errors.Is(err, fs.ErrNotExist) || strings.Contains(string(controllers), "memory") {
		return nil
	}
	if err == nil {
		err = os.WriteFile(control, []byte("+memory"), 0)
	}
	if err != nil {
		return fmt.Errorf("needs cgroups with controllers: %w", err)
	}
	return nil
}

// cgroups lists the directories of the cgroup with a name in all hierarchies, existing or
// not: one of version 2, or one for each controller of version 1.
func cgroups(name string) []string {
	if _, err := os.Stat(cgroupRoot + "/cgroup.controllers"); err == nil {
		return []string{filepath.Join(cgroupRoot, name)}
	}
	all, _ := filepath.Glob(cgroupRoot + "/*/cgroup.procs")
	for i, file := range all {
		all[i] = filepath.Join(filepath.Dir(file), name)
	}
	return all
}

// removeCgroups removes the cgroups with a name. Without a name it removes what tests have
// left that were killed.
func removeCgroups(name string) {
	pattern := name
	if name == "" {
		pattern = cgroupPrefix + "*"
	}
	for _, dir := range cgroups(pattern) {
		found, _ := filepath.Glob(dir)
		for _, dir := range found {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
			if name != "" || err == nil && unix.Kill(pid, 0) == unix.ESRCH {
				removeCgroup(dir)
			}
		}
	}
}

// removeCgroup removes a cgroup without processes and those below.
func removeCgroup(dir string) {
	var below []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			below = append(below, path)
		}
		return nil
	})
	slices.Reverse(below)
	for _, dir := range below {
		_ = os.Remove(dir) // rmdir refuses one that is in use
	}
}
