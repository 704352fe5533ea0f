package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAnADDWaitsAsThePolicySays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy  StatusPolicy
		timeout time.Duration
		answers []answer
		want    time.Duration
		fails   bool // with StatusRequire
	}{
		"written":                   {answers: []answer{{delay: 300 * time.Millisecond}}, want: 300 * time.Millisecond},
		"gone":                      {answers: []answer{{code: 404, body: noSuchPod()}}},
		"refused":                   {answers: []answer{{code: 403}}, fails: true},
		"slow":                      {answers: []answer{{delay: 3 * time.Second}}, want: time.Second, fails: true},
		"slow, but there is time":   {timeout: 5 * time.Second, answers: []answer{{delay: 3 * time.Second}}, want: 3 * time.Second},
		"too many requests at once": {answers: []answer{{code: 429}}, want: 100 * time.Millisecond},
		"too many requests":         {answers: []answer{{code: 429, after: 2}}, want: time.Second, fails: true},
	} {
		for _, policy := range []StatusPolicy{"", StatusWait, StatusRequire} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, StatusConfig{Policy: policy, Timeout: test.timeout})
					b.api.fail(test.answers...)
					pod := aPod("a")
					b.set(pod.Container, aStatus("a"))
					begin := time.Now()
					err := b.Wait(t.Context(), pod)
					if d := time.Since(begin); d != test.want {
						t.Errorf("waited for %v, want %v", d, test.want)
					}
					checkNotWritten(t, err, test.fails && policy == StatusRequire)
				})
			})
		}
	}
}

func checkNotWritten(t *testing.T, err error, want bool) {
	t.Helper()
	if errors.Is(err, ErrNotWritten) != want || (err != nil) != want {
		t.Errorf("%v, want ErrNotWritten: %v", err, want)
	}
	var coder interface{ CNICode() uint }
	if want && (!errors.As(err, &coder) || coder.CNICode() != 11) {
		t.Errorf("%v has not code 11", err)
	}
}

func TestAnADDThatDoesNotWaitIsWrittenAllTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, StatusConfig{Policy: StatusAsync})
		b.api.fail(answer{delay: 3 * time.Second})
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		begin := time.Now()
		if err := b.Wait(t.Context(), pod); err != nil || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		settle(time.Minute)
		if diff := cmp.Diff(StatusStats{Written: 1}, b.Stats()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNobodyWaitsWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer answer
		first  time.Duration // that the first ADD waits
	}{
		"refused":        {answer{err: errRefused}, 0},
		"internal error": {answer{code: 500}, 0},
		"black hole":     {answer{delay: time.Hour}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, StatusConfig{})
				wait := func(name string) time.Duration {
					pod := aPod(name)
					b.set(pod.Container, aStatus(name))
					begin := time.Now()
					if err := b.Wait(t.Context(), pod); err != nil {
						t.Error(err)
					}
					return time.Since(begin)
				}
				b.api.fail(repeat(test.answer, 6)...)
				if d := wait("a"); d != test.first {
					t.Errorf("the first ADD has waited for %v, want %v", d, test.first)
				}
				synctest.Wait()
				for _, name := range []string{"b", "c"} {
					if d := wait(name); d != 0 {
						t.Errorf("the ADD of %s has waited for %v", name, d)
					}
				}
				settle(2 * time.Minute)
				if s := b.Stats(); s.Written != 3 || s.Pending != 0 {
					t.Errorf("%+v, want 3 written", s)
				}
				b.api.fail(answer{delay: 300 * time.Millisecond})
				if d := wait("d"); d != 300*time.Millisecond {
					t.Errorf("the ADD afterwards has waited for %v, want 300ms", d)
				}
			})
		})
	}
}

func TestAnADDThatRequiresItsStatusTriesEvenIfTheAPIWasAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, StatusConfig{Policy: StatusRequire})
		b.api.fail(repeat(answer{err: errRefused}, 4)...)
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		checkNotWritten(t, b.Wait(t.Context(), pod), true)
		b.set(pod.Container, Status{}) // undone
		b.Changed(pod)
		settle(time.Minute)
		b.set(pod.Container, aStatus("again"))
		checkNotWritten(t, b.Wait(t.Context(), pod), false)
	})
}

func TestAnADDThatIsCancelledDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, StatusConfig{Policy: StatusRequire})
		b.api.fail(answer{delay: 5 * time.Second})
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := b.Wait(ctx, pod)
		checkNotWritten(t, err, true)
		if d := time.Since(begin); d != 10*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, d)
		}
		if len(b.pods[identity(pod)].waiting) != 0 {
			t.Error("still waiting")
		}
	})
}
