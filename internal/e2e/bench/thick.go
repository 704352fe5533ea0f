//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// resident is the kind of delegates that are executed by multinet, and are one resident
// plugin of multinetd.
const resident = "resident"

// A form is a way to do the same work: multinet, or multinet-shim and a multinetd, with
// Kubernetes or without. The others are compared with the first.
type form struct {
	name   string
	policy string // of rivals; empty is multinet
}

var forms = []form{ //nolint:gochecknoglobals // a table
	{name: "multinet"},
	{name: "shim and daemon", policy: rivals[0]},
	{name: "the same in Kubernetes", policy: rivals[1]},
}

// A ready is a form that is ready to do a kind of work.
type ready struct {
	program, stdin string
	d              *daemon // nil for multinet
}

// relayed starts the daemon of a form, which has a resident plugin. It returns nil for
// multinet.
func (r *rig) relayed(ctx context.Context, a *api, program string, f form) (*daemon, error) {
	if f.policy == "" {
		return nil, nil
	}
	d, _, _, err := r.rival(ctx, a, program, f.policy, object{"relayDir": r.file("relay")})
	if err != nil {
		return nil, err
	}
	return d, until(ctx, "the resident plugin is ready", func() (bool, error) {
		n, err := d.metric(ctx, `multinetd_resident_delegates{state="ready"}`)
		return n == 1, err
	})
}

// launchable puts the resident plugin where a daemon launches it from.
func (r *rig) launchable() error {
	if err := os.Mkdir(r.file("relay"), 0o700); err != nil {
		return err
	}
	return os.Link(r.file("bin", resident), r.file("relay", "10-"+resident))
}

// ready returns how f does the work of n delegates of a kind. d is its daemon.
func (r *rig) ready(d *daemon, f form, kind string, n int) (ready, error) {
	keys := object{"delegates": r.delegates(kind, n)}
	if d == nil {
		path, err := r.conf(fmt.Sprintf("thin-%s-%d.json", kind, n), keys)
		return ready{program: "multinet", stdin: path}, err
	}
	path, err := r.shim(d, fmt.Sprintf("%s-%d", kind, n), keys)
	return ready{program: "multinet-shim", stdin: path, d: d}, err
}

// few are the least and the greatest number of delegates.
func (r *rig) few() []int {
	if least, most := r.ns[0], r.ns[len(r.ns)-1]; least != most {
		return []int{least, most}
	}
	return r.ns
}

// thick compares multinet with shim and daemon: the time of single commands in turn, and
// the CPU time and the memory for many pods.
func (r *rig) thick(ctx context.Context, w io.Writer, a *api) error {
	if err := r.launchable(); err != nil {
		return err
	}
	if err := r.thickTime(ctx, w, a); err != nil {
		return err
	}
	return r.rows(ctx, w, a)
}

// thickTime lets the forms attach and detach in turn.
func (r *rig) thickTime(ctx context.Context, w io.Writer, a *api) (err error) {
	var daemons []*daemon
	defer func() {
		for _, d := range daemons {
			err = errors.Join(err, d.stop())
		}
	}()
	for _, f := range forms {
		d, err := r.relayed(ctx, a, "bin", f)
		daemons = append(daemons, d)
		if err != nil {
			return err
		}
	}
	t := table{text: 3, head: []string{"delegates", "N", "command"}}
	for _, f := range forms {
		t.head = append(t.head, f.name)
	}
	order := rand.New(rand.NewPCG(1, 2))
	for _, kind := range append(r.kinds(), resident) {
		for _, n := range r.few() {
			var all []ready
			for i, f := range forms {
				one, err := r.ready(daemons[i], f, kind, n)
				if err != nil {
					return err
				}
				all = append(all, one)
			}
			add, del := make([][]float64, len(forms)), make([][]float64, len(forms))
			for round := range r.rounds + 1 {
				if err := r.thickRound(ctx, a, all, order.Perm(len(forms)), func(i int, a, d sample) {
					if round > 0 {
						add[i], del[i] = append(add[i], wall(a)), append(del[i], wall(d))
					}
				}); err != nil {
					return err
				}
			}
			for _, c := range []struct {
				command string
				took    [][]float64
			}{{"ADD", add}, {"DEL", del}} {
				row := []string{kind, strconv.Itoa(n), c.command, figure(median(c.took[0]))}
				for _, took := range c.took[1:] {
					row = append(row, times(median(took), ratio(took, c.took[0])))
				}
				t.row(row...)
			}
		}
	}
	return t.print(w, "### multinet, and multinet-shim with multinetd, ms\n\n"+
		"The delegates \"resident\" are executed by multinet, and are a resident plugin of multinetd. "+
		"In parentheses: ratio to multinet in the same round.")
}

// thickRound attaches and detaches a pod by each form, in the given order.
func (r *rig) thickRound(ctx context.Context, a *api, all []ready, order []int, took func(i int, add, del sample)) (err error) {
	runtime.GC()
	defer func() { err = errors.Join(err, r.sweep()) }()
	for _, i := range order {
		p, err := r.member(a)
		if err != nil {
			return err
		}
		c := call{program: all[i].program, command: "ADD", pod: p, stdin: all[i].stdin}
		add, err := r.run(ctx, c)
		if err != nil {
			return err
		}
		c.command = "DEL"
		del, err := r.run(ctx, c)
		if err != nil {
			return err
		}
		took(i, add, del)
	}
	return nil
}

// rows attaches r.row pods one after another, and detaches them. The daemons are
// stripped, as they would be released.
func (r *rig) rows(ctx context.Context, w io.Writer, a *api) error {
	t := table{text: 3, head: []string{
		"delegates", "N", "program", "ADD: CPU, ms", "of the daemon", "DEL: CPU, ms", "of the daemon",
		"memory, MB", "anonymous", "all attached", "anonymous",
	}}
	for _, kind := range []string{noop, resident} {
		for _, n := range r.few() {
			for _, f := range forms {
				cells, err := r.inARow(ctx, a, f, kind, n)
				if err != nil {
					return err
				}
				t.row(append([]string{kind, strconv.Itoa(n), f.name}, cells...)...)
			}
		}
	}
	return t.print(w, fmt.Sprintf("### %d pods in a row\n\nAttached one after another, and then detached. User and system time of "+
		"one command with all processes: the shim, the daemon, its resident plugin and the delegates; and of the daemon alone. "+
		"Memory of the daemon before, and %s after the last ADD; anonymous memory is its heap and its stacks.", r.row, rest))
}

// inARow measures one form. Of multinet it returns the CPU time only.
func (r *rig) inARow(ctx context.Context, a *api, f form, kind string, n int) (cells []string, err error) {
	runtime.GC()
	defer func() { err = errors.Join(err, r.sweep()) }()
	pods := make([]pod, r.row)
	for i := range pods {
		if pods[i], err = r.member(a); err != nil {
			return nil, err
		}
	}
	d, err := r.relayed(ctx, a, "stripped", f)
	defer func() { err = errors.Join(err, d.stop()) }()
	if err != nil {
		return nil, err
	}
	one, err := r.ready(d, f, kind, n)
	if err != nil {
		return nil, err
	}
	memory := make(map[string][]string)
	remember := func() error {
		for _, line := range []string{"VmRSS", "RssAnon"} {
			if d == nil {
				memory[line] = append(memory[line], "–")
				continue
			}
			bytes, err := d.memory(line)
			if err != nil {
				return err
			}
			memory[line] = append(memory[line], mb(bytes))
		}
		return nil
	}
	if d != nil {
		if err := pause(ctx, rest); err != nil {
			return nil, err
		}
	}
	if err := remember(); err != nil {
		return nil, err
	}
	for _, command := range []string{"ADD", "DEL"} {
		all, own, err := r.bill(ctx, call{program: one.program, command: command, stdin: one.stdin}, pods, d)
		if err != nil {
			return nil, err
		}
		if cells = append(cells, figure(all)); d == nil {
			cells = append(cells, "–")
		} else {
			cells = append(cells, figure(own))
		}
		if command == "ADD" {
			if err := remember(); err != nil {
				return nil, err
			}
		}
	}
	return append(cells, memory["VmRSS"][0], memory["RssAnon"][0], memory["VmRSS"][1], memory["RssAnon"][1]), nil
}

// bill runs c for each of pods, one after another, and returns the CPU time that one took
// on average, in milliseconds: of all processes, and of d alone. What d does in the rest
// after the last one counts.
func (r *rig) bill(ctx context.Context, c call, pods []pod, d *daemon) (all, own float64, err error) {
	before, err := d.spent()
	if err != nil {
		return 0, 0, err
	}
	for _, p := range pods {
		c.pod = p
		s, err := r.run(ctx, c)
		if err != nil {
			return 0, 0, err
		}
		all += cpu(s)
	}
	if d == nil {
		return all / float64(len(pods)), 0, nil
	}
	if err := pause(ctx, rest); err != nil {
		return 0, 0, err
	}
	after, err := d.spent()
	if err != nil {
		return 0, 0, err
	}
	all += after.own - before.own + after.others - before.others
	return all / float64(len(pods)), (after.own - before.own) / float64(len(pods)), nil
}

// spent is CPU time in milliseconds: of a daemon, and of the processes that it has started.
type spent struct{ own, others float64 }

// spent returns the CPU time until now, each part to a hundredth of a second. A nil daemon
// has spent none.
func (d *daemon) spent() (t spent, err error) {
	if d == nil {
		return t, nil
	}
	pid := strconv.Itoa(d.cmd.Process.Pid)
	if t.own, t.others, err = cpuTimes(pid); err != nil {
		return t, err
	}
	lists, err := filepath.Glob(filepath.Join("/proc", pid, "task", "*", "children"))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may have ended
		for child := range strings.FieldsSeq(string(text)) {
			own, ended, err := cpuTimes(child)
			if err != nil {
				return t, err
			}
			t.others += own + ended
		}
	}
	return t, err
}

// cpuTimes returns the CPU time of a process, and of its children that have ended.
func cpuTimes(pid string) (own, ended float64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut(string(text), ") ")
	var ticks [4]float64 // utime, stime, cutime, cstime: fields 14 to 17
	for i, field := range append(strings.Fields(after), make([]string, 15)...)[11:15] {
		if ticks[i], err = strconv.ParseFloat(field, 64); err != nil {
			return 0, 0, fmt.Errorf("CPU time of process %s: %w", pid, err)
		}
	}
	const tick = 10 // milliseconds, on every architecture
	return tick * (ticks[0] + ticks[1]), tick * (ticks[2] + ticks[3]), nil
}
