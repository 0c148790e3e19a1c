package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A Monitor tells machines over HTTP how a gateway does: /healthz that the process
// answers, /readyz whether users can be sent to it, /metrics numbers in the format of
// Prometheus. It is there before the gateway is. Nobody has to log in, so what it says
// names no user, sandbox or host.
type Monitor struct {
	log      *slog.Logger
	registry *prometheus.Registry
	gate     atomic.Pointer[Gateway] // nil: it is being started
}

// NewMonitor returns a monitor of a gateway that is about to be made by the program
// of that version.
func NewMonitor(version string, log *slog.Logger) *Monitor {
	m := &Monitor{log: log, registry: prometheus.NewRegistry()}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sandgate_build_info", Help: "1, with the program's version.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Watch makes the monitor tell of a gateway. It is called once.
func (m *Monitor) Watch(g *Gateway) {
	m.registry.MustRegister(g)
	m.gate.Store(g)
}

// Serve answers on l until ctx ends, and closes l.
func (m *Monitor) Serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler:           m.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(m.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

func (m *Monitor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", m.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // what can be told is
		MaxRequestsInFlight: 4,
		Timeout:             2 * scrapeTimeout,
	}))
	return mux
}

// serveReady answers 200 if users can be sent here, else 503. Each check is "ok" or
// says what is the matter.
func (m *Monitor) serveReady(w http.ResponseWriter, r *http.Request) {
	checks := map[string]string{"serving": "starting"}
	if g := m.gate.Load(); g != nil {
		checks = g.ready(r.Context())
	}
	ready := true
	for _, says := range checks {
		ready = ready && says == "ok"
	}
	w.Header().Set("Content-Type", "application/json")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	json.NewEncoder(w).Encode(map[string]any{"ready": ready, "checks": checks})
}

// readyTimeout bounds each check.
const readyTimeout = 2 * time.Second

// ready checks whether users can be sent here. The chains of errors are in the log.
func (g *Gateway) ready(ctx context.Context) map[string]string {
	checks := map[string]string{"database": "ok", "driver": "ok", "serving": "ok"}
	check := func(name, says string, f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		if err := f(ctx); err != nil {
			g.log.Warn("not ready", "check", name, keyErr, err)
			checks[name] = says
		}
	}
	check("database", "does not answer", func(ctx context.Context) error {
		_, err := g.db.CountUsers(ctx)
		return err
	})
	check("driver", "cannot be used", g.sandboxes.Usable)
	switch phase(g.phase.Load()) {
	case phaseStarting:
		checks["serving"] = "starting"
	case phaseDraining:
		checks["serving"] = "draining"
	}
	return checks
}

// A phase is how far the life of a gateway has got.
type phase int32

const (
	phaseStarting phase = iota
	phaseServing
	phaseDraining
)
