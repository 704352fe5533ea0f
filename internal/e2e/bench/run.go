//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/metacni/metacni/examples/lab/host"
)

type object = map[string]any

// A rig is the environment of the measurements.
type rig struct {
	options
	work   string
	stderr *os.File
	made   int // pods

	spaces []string // existing network namespaces
}

// file returns a path in the working directory.
func (r *rig) file(elem ...string) string { return filepath.Join(append([]string{r.work}, elem...)...) }

// A pod is a container to attach.
type pod struct{ id, netns, args string }

// pod returns a new pod with a network namespace.
func (r *rig) pod() (pod, error) {
	r.made++
	p := pod{id: "bench-" + strconv.Itoa(r.made)}
	netns, err := host.NewNS(p.id)
	if err == nil {
		p.netns, r.spaces = netns, append(r.spaces, netns)
	}
	return p, err
}

// sweep removes the namespaces. It runs after a round, as the kernel deletes them in the
// background.
func (r *rig) sweep() (err error) {
	for _, netns := range r.spaces {
		err = errors.Join(err, host.RemoveNS(netns))
	}
	r.spaces = nil
	runtime.GC()
	return err
}

// delegates returns n delegates of a kind.
func (r *rig) delegates(kind string, n int) []object {
	list := make([]object, n)
	for i := range list {
		list[i] = object{"type": kind, "name": "net-" + strconv.Itoa(i), "cniVersion": "1.0.0"}
		switch kind {
		case resident:
			list[i]["addresses"] = []string{"192.0.2.2/24"}
		case bridge:
			maps.Copy(list[i], object{
				"bridge": "br" + strconv.Itoa(i), "isGateway": true,
				"ipam": object{
					"type": "host-local", "dataDir": r.file("leases"),
					"ranges": [][]object{{{"subnet": fmt.Sprintf("10.%d.0.0/16", i)}}},
				},
			})
		}
	}
	return list
}

// conf writes a configuration that each of the meta-plugins can read, with keys added, and
// returns its path.
func (r *rig) conf(name string, keys object) (string, error) {
	conf := object{
		"cniVersion": "1.0.0", "name": "bench", "type": "multinet",
		"cniDir": r.file("state"), "confDir": r.file("net.d"), "binDir": r.file("bin"), // multinet's
		"cacheDir": r.file("cache"), // libcni's
	}
	maps.Copy(conf, keys)
	text, err := json.Marshal(conf)
	if err != nil {
		return "", err
	}
	path := r.file(name + ".json")
	return path, os.WriteFile(path, text, 0o600)
}

// A call is one run of a program of work/bin.
type call struct {
	program, command string
	pod              pod
	stdin            string   // path of a file
	args             []string // if it does not run as a plugin
}

// run runs a program, which must succeed, and returns its time in milliseconds.
func (r *rig) run(ctx context.Context, c call) (float64, error) {
	stdin, err := os.Open(c.stdin)
	if err != nil {
		return 0, err
	}
	defer func() { _ = stdin.Close() }()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, r.file("bin", c.program), c.args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", r.environ(c), stdin, &out, r.stderr
	start := time.Now()
	err = cmd.Run()
	took := time.Since(start)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if err != nil || c.command == "ADD" && !bytes.Contains(out.Bytes(), []byte(`"cniVersion"`)) {
		return 0, fmt.Errorf("%s %s: %w: %s", c.program, c.command, cmp.Or(err, errors.New("no result")), out.Bytes())
	}
	return float64(took) / float64(time.Millisecond), nil
}

func (r *rig) environ(c call) []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if c.command != "" {
		env = append(env, "CNI_COMMAND="+c.command, "CNI_PATH="+r.file("bin"))
	}
	if c.pod.id != "" {
		env = append(env, "CNI_CONTAINERID="+c.pod.id, "CNI_NETNS="+c.pod.netns, "CNI_IFNAME=eth0")
	}
	if c.pod.args != "" {
		env = append(env, "CNI_ARGS="+c.pod.args)
	}
	return env
}
