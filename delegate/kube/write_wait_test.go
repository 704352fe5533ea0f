package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
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
				bubble(t, StatusConfig{Policy: policy, Timeout: test.timeout}, func(b *bench) {
					b.api.fail(test.answers...)
					pod := aPod("a")
					b.set(pod.Container, aStatus("a"))
					begin := time.Now()
					err := b.Wait(b.Context(), pod)
					if d := time.Since(begin); d != test.want {
						b.Errorf("waited for %v, want %v", d, test.want)
					}
					checkNotWritten(b, err, test.fails && policy == StatusRequire)
				})
			})
		}
	}
}

func checkNotWritten(tb testing.TB, err error, want bool) {
	tb.Helper()
	if errors.Is(err, errNotWritten) != want || (err != nil) != want {
		tb.Errorf("%v, want errNotWritten: %v", err, want)
	}
	var coder interface{ CNICode() uint }
	if want && (!errors.As(err, &coder) || coder.CNICode() != 11) {
		tb.Errorf("%v has not code 11", err)
	}
}

func TestAnADDThatDoesNotWaitIsWrittenAllTheSame(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusAsync}, func(b *bench) {
		b.api.fail(answer{delay: 3 * time.Second})
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		begin := time.Now()
		if err := b.Wait(b.Context(), pod); err != nil || time.Since(begin) != 0 {
			b.Errorf("%v after %v", err, time.Since(begin))
		}
		settle(time.Minute)
		nodetest.Equal(b, "statistics", b.Stats(), StatusStats{Written: 1})
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
			bubble(t, StatusConfig{}, func(b *bench) {
				wait := func(name string) time.Duration {
					pod := aPod(name)
					b.set(pod.Container, aStatus(name))
					begin := time.Now()
					if err := b.Wait(b.Context(), pod); err != nil {
						b.Error(err)
					}
					return time.Since(begin)
				}
				b.api.fail(repeat(test.answer, 6)...)
				if d := wait("a"); d != test.first {
					b.Errorf("the first ADD has waited for %v, want %v", d, test.first)
				}
				synctest.Wait()
				for _, name := range []string{"b", "c"} {
					if d := wait(name); d != 0 {
						b.Errorf("the ADD of %s has waited for %v", name, d)
					}
				}
				settle(2 * time.Minute)
				if s := b.Stats(); s.Written != 3 || s.Pending != 0 {
					b.Errorf("%+v, want 3 written", s)
				}
				b.api.fail(answer{delay: 300 * time.Millisecond})
				if d := wait("d"); d != 300*time.Millisecond {
					b.Errorf("the ADD afterwards has waited for %v, want 300ms", d)
				}
			})
		})
	}
}

func TestAnADDThatRequiresItsStatusTriesEvenIfTheAPIWasAway(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
		b.api.fail(repeat(answer{err: errRefused}, 4)...)
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		checkNotWritten(b, b.Wait(b.Context(), pod), true)
		b.set(pod.Container, Status{}) // undone
		b.Changed(pod)
		settle(time.Minute)
		b.set(pod.Container, aStatus("again"))
		checkNotWritten(b, b.Wait(b.Context(), pod), false)
	})
}

func TestAnADDThatIsCancelledDoesNotWait(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
		b.api.fail(answer{delay: 5 * time.Second})
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := b.Wait(ctx, pod)
		checkNotWritten(b, err, true)
		if d := time.Since(begin); d != 10*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("%v after %v", err, d)
		}
		if len(b.pods[identity(pod)].waiting) != 0 {
			b.Error("still waiting")
		}
	})
}
