//go:build metacni_steps

package durable

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var steps struct {
	sync.Mutex
	seen map[string]int
}

// Step appends "PID COMMAND CALL NAME" to the file that METACNI_STEPS names. At
// the METACNI_STEPS_NTH step of METACNI_STEPS_KILL it says so there, and kills
// its process.
//
// If METACNI_STEPS is "pause N", Step takes up to a millisecond longer instead, once in N
// times: so other processes come in between, on an idle machine too.
func Step(call, name string) {
	log := os.Getenv("METACNI_STEPS")
	if log == "" {
		return
	}
	if n, pauses := strings.CutPrefix(log, "pause "); pauses {
		if once, _ := strconv.Atoi(n); rand.IntN(once) == 0 {
			time.Sleep(rand.N(time.Millisecond))
		}
		return
	}
	if IsTemp(name) { // which one is chance
		name = TempPrefix
	}
	step := strings.Join([]string{os.Getenv("CNI_COMMAND"), call, name}, " ")
	steps.Lock()
	defer steps.Unlock()
	if steps.seen == nil {
		steps.seen = make(map[string]int)
	}
	steps.seen[step]++
	say(log, step)
	if step != os.Getenv("METACNI_STEPS_KILL") || strconv.Itoa(steps.seen[step]) != os.Getenv("METACNI_STEPS_NTH") {
		return
	}
	say(log, "killed")
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func say(log, what string) {
	f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid(), what)
		_ = f.Close()
	}
	if err != nil {
		panic(err)
	}
}
