//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
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
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	stdin, err := os.Open(c.stdin)
	if err != nil {
		return 0, err
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := os.CreateTemp(r.work, "out-")
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = stdout.Close(), os.Remove(stdout.Name()) }()
	attr := &os.ProcAttr{Dir: "/", Env: r.environ(c), Files: []*os.File{stdin, stdout, r.stderr}}
	path := r.file("bin", c.program)

	start := time.Now()
	p, err := os.StartProcess(path, append([]string{path}, c.args...), attr)
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() })
	state, err := p.Wait()
	took := time.Since(start)

	if stop(); ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if err != nil {
		return 0, err
	}
	out, err := io.ReadAll(io.NewSectionReader(stdout, 0, 1<<20))
	if err == nil && (!state.Success() || c.command == "ADD" && !bytes.Contains(out, []byte(`"cniVersion"`))) {
		err = fmt.Errorf("%s %s: %s: %s", c.program, c.command, state, out)
	}
	return ms(took), err
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

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
