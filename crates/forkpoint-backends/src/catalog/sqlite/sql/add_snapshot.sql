INSERT INTO snapshot (
    id, name, sandbox, sandbox_name, parent, driver, kind, trigger, description, context, run_id, step, labels,
    agent_state_bytes, spec, own_bytes, total_bytes, file_count, created, expires, pinned, last_restored,
    restore_count, durable, artifact
) VALUES (
    :id, :name, :sandbox, :sandbox_name, :parent, :driver, :kind, :trigger, :description, :context, :run_id, :step, :labels,
    :agent_state_bytes, :spec, :own_bytes, :total_bytes, :file_count, :created, :expires, :pinned, :last_restored,
    :restore_count, :durable, :artifact
)
