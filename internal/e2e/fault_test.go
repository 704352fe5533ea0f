package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/hosttest"
)

// cure stops all faults of the fakes.
func (w *world) cure() {
	w.t.Helper()
	if err := os.WriteFile(w.file("fake", "cured"), nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// sicken ends cure: the fakes fail again as configured.
func (w *world) sicken() {
	w.t.Helper()
	if err := os.Remove(w.file("fake", "cured")); err != nil {
		w.t.Fatal(err)
	}
}

// TestADDIsUndoneWhateverTheLastPluginDoes: whatever the last plugin of an ADD
// does instead of answering, the ADD fails and everything it attached is
// detached. TestEveryFailedADDIsUndone varies which plugin fails; this test
// varies the fault and includes flannel.
func TestADDIsUndoneWhateverTheLastPluginDoes(t *testing.T) {
	for _, s := range allSubjects() {
		for fault, code := range map[string]uint{
			"fail": 111, "noise": 6, "two": 6, "garbage": 6, "silence": 6, "die": 999, "flood": 999,
		} {
			t.Run(s.name+"/"+fault, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod(s.conf(w, "ADD", fault))
				w.fails(code, "ADD", p, []string{"fake"})
				if s.parallel {
					w.undone(len(s.fakes))
				} else {
					w.trace(append(s.calls("ADD"), s.calls("DEL")...)...)
				}
				w.nothingLeft()
				w.forget()
				w.ok("DEL", p)
				w.trace()
				w.noPlugins()
				w.figures(s.name+": ADD of a plugin that does: "+fault, 1)
			})
		}
	}
}

// TestFailedDELKeepsTheRecord: if a plugin dies, floods stdout or fails in a
// DEL, the DEL fails and keeps the record, and the next DEL removes the rest. A
// plugin that has done its work does not fail the DEL by what it prints.
func TestFailedDELKeepsTheRecord(t *testing.T) {
	for _, s := range allSubjects() {
		for fault, code := range map[string]uint{
			"fail": 111, "die": 999, "flood": 999, "noise": 0, "two": 0, "flood stderr": 0, "child": 0, "daemon": 0,
		} {
			t.Run(s.name+"/"+fault, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod(s.conf(w, "DEL", fault))
				w.ok("ADD", p)
				if code == 0 {
					w.ok("DEL", p)
				} else {
					w.fails(code, "DEL", p, []string{"fake"})
					same(t, "recorded", true, w.recorded(p, s.state))
					same(t, "attached", 1, len(w.leaked(p)))
				}
				w.endChildren()
				w.cure()
				w.ok("DEL", p)
				w.nothingLeft()
				w.noPlugins()
				w.figures(s.name+": DEL of a plugin that does: "+fault, 1)
			})
		}
	}
}

// TestFloodsAndChildrenFailNoPlugin: a plugin that floods stderr, or leaves a
// child that holds its pipes, still succeeds, also if the child has a session
// of its own. Only a part of the flood is kept in memory.
func TestFloodsAndChildrenFailNoPlugin(t *testing.T) {
	for _, s := range subjects() {
		for _, fault := range []string{"flood stderr", "child", "daemon"} {
			t.Run(s.name+"/"+fault, func(t *testing.T) {
				w := newWorld(t)
				conf := s.conf(w, "ADD", fault)
				if s.name == "multinet" {
					conf["delegates"] = append(conf["delegates"].([]object), w.fake("c", "ADD", "gate"))
				}
				p := w.pod(conf)
				r := w.start("ADD", p)
				if s.name == "multinet" {
					w.ready()
					if kept := w.memory(r.cmd.Process.Pid, "VmHWM:"); kept > 64<<10 {
						t.Errorf("%d kB in memory", kept)
					}
					w.open()
				}
				a := w.wait(r)
				if a.code != 0 {
					t.Fatalf("ADD: %s", a.stdout)
				}
				if a.took > 5*time.Second {
					t.Errorf("answered after %v", a.took)
				}
				w.endChildren()
				w.cure()
				w.ok("DEL", p)
				w.nothingLeft()
				w.noPlugins()
				w.figures(s.name+": ADD of a plugin that does: "+fault, 1)
			})
		}
	}
}

// TestTerminationLeavesNoProcess: SIGTERM while a plugin hangs in ADD or DEL,
// with or without ignoring SIGTERM, alone or with a child: the command answers
// code 11 within 5 s, and no process is left. The ADD is undone, the DEL can be
// repeated. TestTerminatedADDIsUndoneInTime does this with real plugins.
func TestTerminationLeavesNoProcess(t *testing.T) {
	for _, s := range allSubjects() {
		for _, command := range []string{"ADD", "DEL"} {
			for _, fault := range []string{"hang", "deaf", "family"} {
				t.Run(s.name+"/"+command+"/"+fault, func(t *testing.T) {
					w := newWorld(t)
					p := w.pod(s.conf(w, command, fault))
					if command == "DEL" {
						w.ok("ADD", p)
					}
					r := w.start(command, p)
					w.ready() // for family, the child reports it
					w.terminated(r)
					w.noPlugins()
					if command == "ADD" {
						w.nothingLeft()
					} else {
						same(t, "recorded", true, w.recorded(p, s.state))
					}
					w.cure()
					w.ok("DEL", p)
					w.nothingLeft()
					w.figures(fmt.Sprintf("%s: SIGTERM in %s of a plugin that does: %s", s.name, command, fault), 1)
				})
			}
		}
	}
}

// TestDELKillsNobodyButTheOrphan: DEL kills the orphan of a killed ADD, which
// would continue, and no other process, even one that has the lock's file open.
func TestDELKillsNobodyButTheOrphan(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod(s.conf(w, "ADD", "gate"))
			w.killed("ADD", p)
			same(t, "orphans", 1, len(w.running()))
			lock, err := os.Open(w.file(s.state, p.id+"@lock"))
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			bystander := w.bystander(lock)

			w.cure()
			w.ok("DEL", p, withoutNetNS)
			if err := syscall.Kill(bystander, 0); err != nil || stat(bystander)[0] == "Z" {
				t.Error("DEL has killed another process")
			}
			w.nothingLeft()
			w.noPlugins()
			w.figures(fmt.Sprintf("%s: orphan killed, and not who has the lock's file open", s.name), 1)
		})
	}
}

// TestDELKillsOrphansOfEveryCommand: the orphan of a killed ADD or DEL hangs.
// The next DEL waits for it, kills its whole process group, and only then runs
// a plugin.
func TestDELKillsOrphansOfEveryCommand(t *testing.T) {
	for _, s := range subjects() {
		for _, command := range []string{"ADD", "DEL"} {
			t.Run(s.name+"/"+command, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod(s.conf(w, command, "family"))
				if command == "DEL" {
					w.ok("ADD", p)
				}
				w.killed(command, p)
				same(t, "orphans", 2, len(w.running()))
				w.cure()
				w.ok("DEL", p)
				w.nothingLeft() // and no two ran at the same time
				w.noPlugins()
				w.figures(fmt.Sprintf("%s: SIGKILL in %s, the orphan hangs with its child", s.name, command), 1)
			})
		}
	}
}

// bystander starts an idle process that leads a process group and has files
// open.
func (w *world) bystander(files ...*os.File) (pid int) {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(hosttest.Programs(), "fake"))
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe() // it reads until this is closed
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// stat returns the fields of /proc/PID/stat from the third on; see proc(5).
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// endChildren kills the children that the fakes left behind.
func (w *world) endChildren() {
	w.t.Helper()
	for _, c := range w.calls() {
		if c.Command == "NONE" && c.runs() {
			_ = syscall.Kill(c.PID, syscall.SIGKILL)
		}
	}
	w.orphansEnd()
}

// memory returns a number of kB from /proc/PID/status: "VmRSS:" is the resident
// memory, "VmHWM:" its peak.
func (w *world) memory(pid int, key string) int {
	w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		w.t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	i := slices.Index(fields, key)
	if i < 0 {
		w.t.Fatalf("no %s in %s", key, text)
	}
	n, err := strconv.Atoi(fields[i+1])
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}
