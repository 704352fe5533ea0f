package e2e

import (
	"fmt"
	"slices"
	"testing"
)

// TestManyContainersAtOnce attaches, checks and detaches 64 containers at the
// same time, each by a process of its own.
func TestManyContainersAtOnce(t *testing.T) {
	for _, s := range allSubjects() {
		t.Run(s.name, func(t *testing.T) {
			const count = 64
			w := newWorld(t)
			pods := w.newPods(count, func() object { return s.conf(w) })
			for i, command := range []string{"ADD", "CHECK", "DEL", "DEL"} {
				w.allOK(command, pods)
				same(t, "attached after "+command, []int{count, count, 0, 0}[i]*len(s.fakes), len(w.live()))
			}
			w.nothingLeft()
			w.figures(fmt.Sprintf("%s: %d containers at once: ADD, CHECK, DEL, DEL", s.name, count), count)
		})
	}
}

// TestCommandsOnOneContainerTakeTurns runs two commands on one container at the
// same time in two processes, many times. No two plugins ever run at the same
// time, each command succeeds or says why it did nothing, and one more DEL
// leaves nothing.
func TestCommandsOnOneContainerTakeTurns(t *testing.T) {
	rounds := 100
	if !*long {
		rounds = 10
	}
	for _, s := range subjects() {
		for _, pair := range [][2]string{{"ADD", "DEL"}, {"DEL", "DEL"}, {"ADD", "ADD"}, {"ADD", "GC"}, {"DEL", "GC"}, {"CHECK", "DEL"}} {
			t.Run(s.name+"/"+pair[0]+"+"+pair[1], func(t *testing.T) {
				w := newWorld(t)
				p := w.pod(s.conf(w))
				outcomes := make(map[string]int)
				for range rounds {
					if !slices.Contains(pair[:], "ADD") {
						w.ok("ADD", p)
					}
					pair[0], pair[1] = pair[1], pair[0] // the first to start has an advantage
					var rs [2]*running
					for i, command := range pair {
						if command == "GC" {
							rs[i] = w.start(command, p, valid())
						} else {
							rs[i] = w.start(command, p)
						}
					}
					for i, r := range rs {
						a := w.wait(r)
						outcomes[fmt.Sprintf("%s %d", pair[i], a.code)]++
						switch {
						case a.code == 0:
						case pair[i] == "ADD" && a.err.Code == 7 && pair[1-i] == "ADD":
						case pair[i] == "CHECK" && len(w.leaked(p)) == 0: // it was detached before
						default:
							t.Errorf("%s beside %s: %s", pair[i], pair[1-i], a.stdout)
						}
					}
					if live := w.leaked(p); len(live) != 0 && len(live) != len(s.fakes) || len(live) > 0 && !w.recorded(p, s.state) {
						t.Errorf("attached %v, recorded %v", live, w.recorded(p, s.state))
					}
					w.ok("DEL", p)
					w.clean(p, s.state)
					if t.Failed() {
						t.FailNow()
					}
				}
				w.nothingLeft()
				w.figures(fmt.Sprintf("%s: %s and %s of one container at once, in two processes %v", s.name, pair[0], pair[1], outcomes), rounds)
			})
		}
	}
}
