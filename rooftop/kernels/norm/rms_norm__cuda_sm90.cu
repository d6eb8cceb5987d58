/* rooftop
idea    = "Each warp passes on its sum of squares, one barrier a row. Way 2: a row that fits a block waits in its registers. Way 3: longer rows are shared out over clusters of blocks that stay for the whole launch, so that the weight, which for long rows is as many bytes as the row, is read once; the next rows are on their way to shared memory. Way 1, for rows that start anywhere: a cluster a row, which waits in shared memory. x and the residual are read once, y and their sum written once."
predict = { speedup = 1.4 }
limit   = "The copy itself up to 64 KiB a row. At 131072 columns of bf16 0.93 of it, at 262144 0.76: two blocks a multiprocessor wait at one barrier a row."
dtypes  = ["f32", "f16", "bf16"]
args    = ["C: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
demands = { has = ["STG.E.128"], spills = 0 }
prefer  = "bytes_of_row > 65536 or bytes_of_row > 6144 and not (C % 16 == 0 and stride(x, 0) % 16 == 0 and aligned(x, 16)) or bytes_of_row >= 2048 and whole and not present(residual)"
valid   = "threads <= 1024 and (cluster == 1 or bytes_of_row > 4096 * cluster) and (way == 1 and bytes_of_row * blocks <= 225000 * cluster or way == 2 and whole and pieces * threads * 16 >= bytes_of_row and (pieces - 1) * threads * 16 < bytes_of_row or way == 3 and whole and needed <= 1024 and R * cluster > sms * blocks and blocks * needed <= 2048 and blocks * (shared + 2048) <= 231000)"
configs = [{ way = 1, threads = 128, cluster = 1, blocks = 8 }, { way = 1, threads = 128, cluster = 1, blocks = 12 }, { way = 1, threads = 256, cluster = 1, blocks = 3 }, { way = 1, threads = 256, cluster = 1, blocks = 4 }, { way = 1, threads = 256, cluster = 1, blocks = 6 }, { way = 1, threads = 256, cluster = 1, blocks = 8 }, { way = 1, threads = 512, cluster = 1, blocks = 2 }, { way = 1, threads = 512, cluster = 1, blocks = 3 }, { way = 1, threads = 512, cluster = 1, blocks = 4 }, { way = 1, threads = 1024, cluster = 1, blocks = 1 }, { way = 1, threads = 1024, cluster = 1, blocks = 2 }, { way = 1, threads = 256, cluster = 2, blocks = 3 }, { way = 1, threads = 256, cluster = 2, blocks = 4 }, { way = 1, threads = 256, cluster = 2, blocks = 6 }, { way = 1, threads = 256, cluster = 2, blocks = 8 }, { way = 1, threads = 512, cluster = 2, blocks = 2 }, { way = 1, threads = 512, cluster = 2, blocks = 3 }, { way = 1, threads = 512, cluster = 2, blocks = 4 }, { way = 1, threads = 1024, cluster = 2, blocks = 1 }, { way = 1, threads = 1024, cluster = 2, blocks = 2 }, { way = 1, threads = 256, cluster = 4, blocks = 3 }, { way = 1, threads = 256, cluster = 4, blocks = 4 }, { way = 1, threads = 256, cluster = 4, blocks = 6 }, { way = 1, threads = 256, cluster = 4, blocks = 8 }, { way = 1, threads = 512, cluster = 4, blocks = 2 }, { way = 1, threads = 512, cluster = 4, blocks = 3 }, { way = 1, threads = 512, cluster = 4, blocks = 4 }, { way = 1, threads = 1024, cluster = 4, blocks = 1 }, { way = 1, threads = 1024, cluster = 4, blocks = 2 }, { way = 1, threads = 256, cluster = 8, blocks = 3 }, { way = 1, threads = 256, cluster = 8, blocks = 4 }, { way = 1, threads = 256, cluster = 8, blocks = 6 }, { way = 1, threads = 256, cluster = 8, blocks = 8 }, { way = 1, threads = 512, cluster = 8, blocks = 2 }, { way = 1, threads = 512, cluster = 8, blocks = 3 }, { way = 1, threads = 512, cluster = 8, blocks = 4 }, { way = 1, threads = 1024, cluster = 8, blocks = 1 }, { way = 1, threads = 1024, cluster = 8, blocks = 2 }, { way = 1, threads = 256, cluster = 16, blocks = 3 }, { way = 1, threads = 256, cluster = 16, blocks = 4 }, { way = 1, threads = 256, cluster = 16, blocks = 6 }, { way = 1, threads = 256, cluster = 16, blocks = 8 }, { way = 1, threads = 512, cluster = 16, blocks = 2 }, { way = 1, threads = 512, cluster = 16, blocks = 3 }, { way = 1, threads = 512, cluster = 16, blocks = 4 }, { way = 1, threads = 1024, cluster = 16, blocks = 1 }, { way = 1, threads = 1024, cluster = 16, blocks = 2 }, { way = 2, threads = 64, blocks = 8, pieces = 1, early = 0 }, { way = 2, threads = 64, blocks = 8, pieces = 1, early = 1 }, { way = 2, threads = 64, blocks = 16, pieces = 1, early = 0 }, { way = 2, threads = 64, blocks = 16, pieces = 1, early = 1 }, { way = 2, threads = 64, blocks = 8, pieces = 2, early = 0 }, { way = 2, threads = 64, blocks = 8, pieces = 2, early = 1 }, { way = 2, threads = 64, blocks = 16, pieces = 2, early = 0 }, { way = 2, threads = 64, blocks = 16, pieces = 2, early = 1 }, { way = 2, threads = 64, blocks = 8, pieces = 3, early = 0 }, { way = 2, threads = 64, blocks = 8, pieces = 3, early = 1 }, { way = 2, threads = 64, blocks = 16, pieces = 3, early = 0 }, { way = 2, threads = 64, blocks = 16, pieces = 3, early = 1 }, { way = 2, threads = 64, blocks = 8, pieces = 4, early = 0 }, { way = 2, threads = 64, blocks = 8, pieces = 4, early = 1 }, { way = 2, threads = 64, blocks = 16, pieces = 4, early = 0 }, { way = 2, threads = 64, blocks = 16, pieces = 4, early = 1 }, { way = 2, threads = 128, blocks = 8, pieces = 1, early = 0 }, { way = 2, threads = 128, blocks = 8, pieces = 1, early = 1 }, { way = 2, threads = 128, blocks = 12, pieces = 1, early = 0 }, { way = 2, threads = 128, blocks = 12, pieces = 1, early = 1 }, { way = 2, threads = 128, blocks = 16, pieces = 1, early = 0 }, { way = 2, threads = 128, blocks = 16, pieces = 1, early = 1 }, { way = 2, threads = 128, blocks = 8, pieces = 2, early = 0 }, { way = 2, threads = 128, blocks = 8, pieces = 2, early = 1 }, { way = 2, threads = 128, blocks = 12, pieces = 2, early = 0 }, { way = 2, threads = 128, blocks = 12, pieces = 2, early = 1 }, { way = 2, threads = 128, blocks = 16, pieces = 2, early = 0 }, { way = 2, threads = 128, blocks = 16, pieces = 2, early = 1 }, { way = 2, threads = 128, blocks = 8, pieces = 3, early = 0 }, { way = 2, threads = 128, blocks = 8, pieces = 3, early = 1 }, { way = 2, threads = 128, blocks = 12, pieces = 3, early = 0 }, { way = 2, threads = 128, blocks = 12, pieces = 3, early = 1 }, { way = 2, threads = 128, blocks = 16, pieces = 3, early = 0 }, { way = 2, threads = 128, blocks = 16, pieces = 3, early = 1 }, { way = 2, threads = 128, blocks = 8, pieces = 4, early = 0 }, { way = 2, threads = 128, blocks = 8, pieces = 4, early = 1 }, { way = 2, threads = 128, blocks = 12, pieces = 4, early = 0 }, { way = 2, threads = 128, blocks = 12, pieces = 4, early = 1 }, { way = 2, threads = 128, blocks = 16, pieces = 4, early = 0 }, { way = 2, threads = 128, blocks = 16, pieces = 4, early = 1 }, { way = 2, threads = 256, blocks = 4, pieces = 1, early = 0 }, { way = 2, threads = 256, blocks = 4, pieces = 1, early = 1 }, { way = 2, threads = 256, blocks = 6, pieces = 1, early = 0 }, { way = 2, threads = 256, blocks = 6, pieces = 1, early = 1 }, { way = 2, threads = 256, blocks = 8, pieces = 1, early = 0 }, { way = 2, threads = 256, blocks = 8, pieces = 1, early = 1 }, { way = 2, threads = 256, blocks = 4, pieces = 2, early = 0 }, { way = 2, threads = 256, blocks = 4, pieces = 2, early = 1 }, { way = 2, threads = 256, blocks = 6, pieces = 2, early = 0 }, { way = 2, threads = 256, blocks = 6, pieces = 2, early = 1 }, { way = 2, threads = 256, blocks = 8, pieces = 2, early = 0 }, { way = 2, threads = 256, blocks = 8, pieces = 2, early = 1 }, { way = 2, threads = 256, blocks = 4, pieces = 3, early = 0 }, { way = 2, threads = 256, blocks = 4, pieces = 3, early = 1 }, { way = 2, threads = 256, blocks = 6, pieces = 3, early = 0 }, { way = 2, threads = 256, blocks = 6, pieces = 3, early = 1 }, { way = 2, threads = 256, blocks = 8, pieces = 3, early = 0 }, { way = 2, threads = 256, blocks = 8, pieces = 3, early = 1 }, { way = 2, threads = 256, blocks = 4, pieces = 4, early = 0 }, { way = 2, threads = 256, blocks = 4, pieces = 4, early = 1 }, { way = 2, threads = 256, blocks = 6, pieces = 4, early = 0 }, { way = 2, threads = 256, blocks = 6, pieces = 4, early = 1 }, { way = 2, threads = 256, blocks = 8, pieces = 4, early = 0 }, { way = 2, threads = 256, blocks = 8, pieces = 4, early = 1 }, { way = 2, threads = 512, blocks = 2, pieces = 1, early = 0 }, { way = 2, threads = 512, blocks = 2, pieces = 1, early = 1 }, { way = 2, threads = 512, blocks = 3, pieces = 1, early = 0 }, { way = 2, threads = 512, blocks = 3, pieces = 1, early = 1 }, { way = 2, threads = 512, blocks = 4, pieces = 1, early = 0 }, { way = 2, threads = 512, blocks = 4, pieces = 1, early = 1 }, { way = 2, threads = 512, blocks = 2, pieces = 2, early = 0 }, { way = 2, threads = 512, blocks = 2, pieces = 2, early = 1 }, { way = 2, threads = 512, blocks = 3, pieces = 2, early = 0 }, { way = 2, threads = 512, blocks = 3, pieces = 2, early = 1 }, { way = 2, threads = 512, blocks = 4, pieces = 2, early = 0 }, { way = 2, threads = 512, blocks = 4, pieces = 2, early = 1 }, { way = 2, threads = 512, blocks = 2, pieces = 3, early = 0 }, { way = 2, threads = 512, blocks = 2, pieces = 3, early = 1 }, { way = 2, threads = 512, blocks = 3, pieces = 3, early = 0 }, { way = 2, threads = 512, blocks = 3, pieces = 3, early = 1 }, { way = 2, threads = 512, blocks = 4, pieces = 3, early = 0 }, { way = 2, threads = 512, blocks = 4, pieces = 3, early = 1 }, { way = 2, threads = 512, blocks = 2, pieces = 4, early = 0 }, { way = 2, threads = 512, blocks = 2, pieces = 4, early = 1 }, { way = 2, threads = 512, blocks = 3, pieces = 4, early = 0 }, { way = 2, threads = 512, blocks = 3, pieces = 4, early = 1 }, { way = 2, threads = 512, blocks = 4, pieces = 4, early = 0 }, { way = 2, threads = 512, blocks = 4, pieces = 4, early = 1 }, { way = 2, threads = 1024, blocks = 1, pieces = 1, early = 0 }, { way = 2, threads = 1024, blocks = 1, pieces = 1, early = 1 }, { way = 2, threads = 1024, blocks = 2, pieces = 1, early = 0 }, { way = 2, threads = 1024, blocks = 2, pieces = 1, early = 1 }, { way = 2, threads = 1024, blocks = 1, pieces = 2, early = 0 }, { way = 2, threads = 1024, blocks = 1, pieces = 2, early = 1 }, { way = 2, threads = 1024, blocks = 2, pieces = 2, early = 0 }, { way = 2, threads = 1024, blocks = 2, pieces = 2, early = 1 }, { way = 2, threads = 1024, blocks = 1, pieces = 3, early = 0 }, { way = 2, threads = 1024, blocks = 1, pieces = 3, early = 1 }, { way = 2, threads = 1024, blocks = 2, pieces = 3, early = 0 }, { way = 2, threads = 1024, blocks = 2, pieces = 3, early = 1 }, { way = 2, threads = 1024, blocks = 1, pieces = 4, early = 0 }, { way = 2, threads = 1024, blocks = 1, pieces = 4, early = 1 }, { way = 2, threads = 1024, blocks = 2, pieces = 4, early = 0 }, { way = 2, threads = 1024, blocks = 2, pieces = 4, early = 1 }, { way = 3, cluster = 1, blocks = 1, pieces = 1, stages = 1 }, { way = 3, cluster = 1, blocks = 1, pieces = 1, stages = 2 }, { way = 3, cluster = 1, blocks = 1, pieces = 1, stages = 3 }, { way = 3, cluster = 1, blocks = 2, pieces = 1, stages = 1 }, { way = 3, cluster = 1, blocks = 2, pieces = 1, stages = 2 }, { way = 3, cluster = 1, blocks = 2, pieces = 1, stages = 3 }, { way = 3, cluster = 1, blocks = 3, pieces = 1, stages = 1 }, { way = 3, cluster = 1, blocks = 3, pieces = 1, stages = 2 }, { way = 3, cluster = 1, blocks = 3, pieces = 1, stages = 3 }, { way = 3, cluster = 1, blocks = 4, pieces = 1, stages = 1 }, { way = 3, cluster = 1, blocks = 4, pieces = 1, stages = 2 }, { way = 3, cluster = 1, blocks = 4, pieces = 1, stages = 3 }, { way = 3, cluster = 2, blocks = 1, pieces = 1, stages = 1 }, { way = 3, cluster = 2, blocks = 1, pieces = 1, stages = 2 }, { way = 3, cluster = 2, blocks = 1, pieces = 1, stages = 3 }, { way = 3, cluster = 2, blocks = 2, pieces = 1, stages = 1 }, { way = 3, cluster = 2, blocks = 2, pieces = 1, stages = 2 }, { way = 3, cluster = 2, blocks = 2, pieces = 1, stages = 3 }, { way = 3, cluster = 2, blocks = 3, pieces = 1, stages = 1 }, { way = 3, cluster = 2, blocks = 3, pieces = 1, stages = 2 }, { way = 3, cluster = 2, blocks = 3, pieces = 1, stages = 3 }, { way = 3, cluster = 2, blocks = 4, pieces = 1, stages = 1 }, { way = 3, cluster = 2, blocks = 4, pieces = 1, stages = 2 }, { way = 3, cluster = 2, blocks = 4, pieces = 1, stages = 3 }, { way = 3, cluster = 4, blocks = 1, pieces = 1, stages = 1 }, { way = 3, cluster = 4, blocks = 1, pieces = 1, stages = 2 }, { way = 3, cluster = 4, blocks = 1, pieces = 1, stages = 3 }, { way = 3, cluster = 4, blocks = 2, pieces = 1, stages = 1 }, { way = 3, cluster = 4, blocks = 2, pieces = 1, stages = 2 }, { way = 3, cluster = 4, blocks = 2, pieces = 1, stages = 3 }, { way = 3, cluster = 4, blocks = 3, pieces = 1, stages = 1 }, { way = 3, cluster = 4, blocks = 3, pieces = 1, stages = 2 }, { way = 3, cluster = 4, blocks = 3, pieces = 1, stages = 3 }, { way = 3, cluster = 4, blocks = 4, pieces = 1, stages = 1 }, { way = 3, cluster = 4, blocks = 4, pieces = 1, stages = 2 }, { way = 3, cluster = 4, blocks = 4, pieces = 1, stages = 3 }, { way = 3, cluster = 8, blocks = 1, pieces = 1, stages = 1 }, { way = 3, cluster = 8, blocks = 1, pieces = 1, stages = 2 }, { way = 3, cluster = 8, blocks = 1, pieces = 1, stages = 3 }, { way = 3, cluster = 8, blocks = 2, pieces = 1, stages = 1 }, { way = 3, cluster = 8, blocks = 2, pieces = 1, stages = 2 }, { way = 3, cluster = 8, blocks = 2, pieces = 1, stages = 3 }, { way = 3, cluster = 8, blocks = 3, pieces = 1, stages = 1 }, { way = 3, cluster = 8, blocks = 3, pieces = 1, stages = 2 }, { way = 3, cluster = 8, blocks = 3, pieces = 1, stages = 3 }, { way = 3, cluster = 8, blocks = 4, pieces = 1, stages = 1 }, { way = 3, cluster = 8, blocks = 4, pieces = 1, stages = 2 }, { way = 3, cluster = 8, blocks = 4, pieces = 1, stages = 3 }, { way = 3, cluster = 16, blocks = 1, pieces = 1, stages = 1 }, { way = 3, cluster = 16, blocks = 1, pieces = 1, stages = 2 }, { way = 3, cluster = 16, blocks = 1, pieces = 1, stages = 3 }, { way = 3, cluster = 16, blocks = 2, pieces = 1, stages = 1 }, { way = 3, cluster = 16, blocks = 2, pieces = 1, stages = 2 }, { way = 3, cluster = 16, blocks = 2, pieces = 1, stages = 3 }, { way = 3, cluster = 16, blocks = 3, pieces = 1, stages = 1 }, { way = 3, cluster = 16, blocks = 3, pieces = 1, stages = 2 }, { way = 3, cluster = 16, blocks = 3, pieces = 1, stages = 3 }, { way = 3, cluster = 16, blocks = 4, pieces = 1, stages = 1 }, { way = 3, cluster = 16, blocks = 4, pieces = 1, stages = 2 }, { way = 3, cluster = 16, blocks = 4, pieces = 1, stages = 3 }, { way = 3, cluster = 1, blocks = 1, pieces = 2, stages = 1 }, { way = 3, cluster = 1, blocks = 1, pieces = 2, stages = 2 }, { way = 3, cluster = 1, blocks = 1, pieces = 2, stages = 3 }, { way = 3, cluster = 1, blocks = 2, pieces = 2, stages = 1 }, { way = 3, cluster = 1, blocks = 2, pieces = 2, stages = 2 }, { way = 3, cluster = 1, blocks = 2, pieces = 2, stages = 3 }, { way = 3, cluster = 1, blocks = 3, pieces = 2, stages = 1 }, { way = 3, cluster = 1, blocks = 3, pieces = 2, stages = 2 }, { way = 3, cluster = 1, blocks = 3, pieces = 2, stages = 3 }, { way = 3, cluster = 1, blocks = 4, pieces = 2, stages = 1 }, { way = 3, cluster = 1, blocks = 4, pieces = 2, stages = 2 }, { way = 3, cluster = 1, blocks = 4, pieces = 2, stages = 3 }, { way = 3, cluster = 2, blocks = 1, pieces = 2, stages = 1 }, { way = 3, cluster = 2, blocks = 1, pieces = 2, stages = 2 }, { way = 3, cluster = 2, blocks = 1, pieces = 2, stages = 3 }, { way = 3, cluster = 2, blocks = 2, pieces = 2, stages = 1 }, { way = 3, cluster = 2, blocks = 2, pieces = 2, stages = 2 }, { way = 3, cluster = 2, blocks = 2, pieces = 2, stages = 3 }, { way = 3, cluster = 2, blocks = 3, pieces = 2, stages = 1 }, { way = 3, cluster = 2, blocks = 3, pieces = 2, stages = 2 }, { way = 3, cluster = 2, blocks = 3, pieces = 2, stages = 3 }, { way = 3, cluster = 2, blocks = 4, pieces = 2, stages = 1 }, { way = 3, cluster = 2, blocks = 4, pieces = 2, stages = 2 }, { way = 3, cluster = 2, blocks = 4, pieces = 2, stages = 3 }, { way = 3, cluster = 4, blocks = 1, pieces = 2, stages = 1 }, { way = 3, cluster = 4, blocks = 1, pieces = 2, stages = 2 }, { way = 3, cluster = 4, blocks = 1, pieces = 2, stages = 3 }, { way = 3, cluster = 4, blocks = 2, pieces = 2, stages = 1 }, { way = 3, cluster = 4, blocks = 2, pieces = 2, stages = 2 }, { way = 3, cluster = 4, blocks = 2, pieces = 2, stages = 3 }, { way = 3, cluster = 4, blocks = 3, pieces = 2, stages = 1 }, { way = 3, cluster = 4, blocks = 3, pieces = 2, stages = 2 }, { way = 3, cluster = 4, blocks = 3, pieces = 2, stages = 3 }, { way = 3, cluster = 4, blocks = 4, pieces = 2, stages = 1 }, { way = 3, cluster = 4, blocks = 4, pieces = 2, stages = 2 }, { way = 3, cluster = 4, blocks = 4, pieces = 2, stages = 3 }, { way = 3, cluster = 8, blocks = 1, pieces = 2, stages = 1 }, { way = 3, cluster = 8, blocks = 1, pieces = 2, stages = 2 }, { way = 3, cluster = 8, blocks = 1, pieces = 2, stages = 3 }, { way = 3, cluster = 8, blocks = 2, pieces = 2, stages = 1 }, { way = 3, cluster = 8, blocks = 2, pieces = 2, stages = 2 }, { way = 3, cluster = 8, blocks = 2, pieces = 2, stages = 3 }, { way = 3, cluster = 8, blocks = 3, pieces = 2, stages = 1 }, { way = 3, cluster = 8, blocks = 3, pieces = 2, stages = 2 }, { way = 3, cluster = 8, blocks = 3, pieces = 2, stages = 3 }, { way = 3, cluster = 8, blocks = 4, pieces = 2, stages = 1 }, { way = 3, cluster = 8, blocks = 4, pieces = 2, stages = 2 }, { way = 3, cluster = 8, blocks = 4, pieces = 2, stages = 3 }, { way = 3, cluster = 16, blocks = 1, pieces = 2, stages = 1 }, { way = 3, cluster = 16, blocks = 1, pieces = 2, stages = 2 }, { way = 3, cluster = 16, blocks = 1, pieces = 2, stages = 3 }, { way = 3, cluster = 16, blocks = 2, pieces = 2, stages = 1 }, { way = 3, cluster = 16, blocks = 2, pieces = 2, stages = 2 }, { way = 3, cluster = 16, blocks = 2, pieces = 2, stages = 3 }, { way = 3, cluster = 16, blocks = 3, pieces = 2, stages = 1 }, { way = 3, cluster = 16, blocks = 3, pieces = 2, stages = 2 }, { way = 3, cluster = 16, blocks = 3, pieces = 2, stages = 3 }, { way = 3, cluster = 16, blocks = 4, pieces = 2, stages = 1 }, { way = 3, cluster = 16, blocks = 4, pieces = 2, stages = 2 }, { way = 3, cluster = 16, blocks = 4, pieces = 2, stages = 3 }, { way = 3, cluster = 1, blocks = 1, pieces = 3, stages = 1 }, { way = 3, cluster = 1, blocks = 1, pieces = 3, stages = 2 }, { way = 3, cluster = 1, blocks = 1, pieces = 3, stages = 3 }, { way = 3, cluster = 1, blocks = 2, pieces = 3, stages = 1 }, { way = 3, cluster = 1, blocks = 2, pieces = 3, stages = 2 }, { way = 3, cluster = 1, blocks = 2, pieces = 3, stages = 3 }, { way = 3, cluster = 1, blocks = 3, pieces = 3, stages = 1 }, { way = 3, cluster = 1, blocks = 3, pieces = 3, stages = 2 }, { way = 3, cluster = 1, blocks = 3, pieces = 3, stages = 3 }, { way = 3, cluster = 1, blocks = 4, pieces = 3, stages = 1 }, { way = 3, cluster = 1, blocks = 4, pieces = 3, stages = 2 }, { way = 3, cluster = 1, blocks = 4, pieces = 3, stages = 3 }, { way = 3, cluster = 2, blocks = 1, pieces = 3, stages = 1 }, { way = 3, cluster = 2, blocks = 1, pieces = 3, stages = 2 }, { way = 3, cluster = 2, blocks = 1, pieces = 3, stages = 3 }, { way = 3, cluster = 2, blocks = 2, pieces = 3, stages = 1 }, { way = 3, cluster = 2, blocks = 2, pieces = 3, stages = 2 }, { way = 3, cluster = 2, blocks = 2, pieces = 3, stages = 3 }, { way = 3, cluster = 2, blocks = 3, pieces = 3, stages = 1 }, { way = 3, cluster = 2, blocks = 3, pieces = 3, stages = 2 }, { way = 3, cluster = 2, blocks = 3, pieces = 3, stages = 3 }, { way = 3, cluster = 2, blocks = 4, pieces = 3, stages = 1 }, { way = 3, cluster = 2, blocks = 4, pieces = 3, stages = 2 }, { way = 3, cluster = 2, blocks = 4, pieces = 3, stages = 3 }, { way = 3, cluster = 4, blocks = 1, pieces = 3, stages = 1 }, { way = 3, cluster = 4, blocks = 1, pieces = 3, stages = 2 }, { way = 3, cluster = 4, blocks = 1, pieces = 3, stages = 3 }, { way = 3, cluster = 4, blocks = 2, pieces = 3, stages = 1 }, { way = 3, cluster = 4, blocks = 2, pieces = 3, stages = 2 }, { way = 3, cluster = 4, blocks = 2, pieces = 3, stages = 3 }, { way = 3, cluster = 4, blocks = 3, pieces = 3, stages = 1 }, { way = 3, cluster = 4, blocks = 3, pieces = 3, stages = 2 }, { way = 3, cluster = 4, blocks = 3, pieces = 3, stages = 3 }, { way = 3, cluster = 4, blocks = 4, pieces = 3, stages = 1 }, { way = 3, cluster = 4, blocks = 4, pieces = 3, stages = 2 }, { way = 3, cluster = 4, blocks = 4, pieces = 3, stages = 3 }, { way = 3, cluster = 8, blocks = 1, pieces = 3, stages = 1 }, { way = 3, cluster = 8, blocks = 1, pieces = 3, stages = 2 }, { way = 3, cluster = 8, blocks = 1, pieces = 3, stages = 3 }, { way = 3, cluster = 8, blocks = 2, pieces = 3, stages = 1 }, { way = 3, cluster = 8, blocks = 2, pieces = 3, stages = 2 }, { way = 3, cluster = 8, blocks = 2, pieces = 3, stages = 3 }, { way = 3, cluster = 8, blocks = 3, pieces = 3, stages = 1 }, { way = 3, cluster = 8, blocks = 3, pieces = 3, stages = 2 }, { way = 3, cluster = 8, blocks = 3, pieces = 3, stages = 3 }, { way = 3, cluster = 8, blocks = 4, pieces = 3, stages = 1 }, { way = 3, cluster = 8, blocks = 4, pieces = 3, stages = 2 }, { way = 3, cluster = 8, blocks = 4, pieces = 3, stages = 3 }, { way = 3, cluster = 16, blocks = 1, pieces = 3, stages = 1 }, { way = 3, cluster = 16, blocks = 1, pieces = 3, stages = 2 }, { way = 3, cluster = 16, blocks = 1, pieces = 3, stages = 3 }, { way = 3, cluster = 16, blocks = 2, pieces = 3, stages = 1 }, { way = 3, cluster = 16, blocks = 2, pieces = 3, stages = 2 }, { way = 3, cluster = 16, blocks = 2, pieces = 3, stages = 3 }, { way = 3, cluster = 16, blocks = 3, pieces = 3, stages = 1 }, { way = 3, cluster = 16, blocks = 3, pieces = 3, stages = 2 }, { way = 3, cluster = 16, blocks = 3, pieces = 3, stages = 3 }, { way = 3, cluster = 16, blocks = 4, pieces = 3, stages = 1 }, { way = 3, cluster = 16, blocks = 4, pieces = 3, stages = 2 }, { way = 3, cluster = 16, blocks = 4, pieces = 3, stages = 3 }, { way = 3, cluster = 1, blocks = 1, pieces = 4, stages = 1 }, { way = 3, cluster = 1, blocks = 1, pieces = 4, stages = 2 }, { way = 3, cluster = 1, blocks = 1, pieces = 4, stages = 3 }, { way = 3, cluster = 1, blocks = 2, pieces = 4, stages = 1 }, { way = 3, cluster = 1, blocks = 2, pieces = 4, stages = 2 }, { way = 3, cluster = 1, blocks = 2, pieces = 4, stages = 3 }, { way = 3, cluster = 1, blocks = 3, pieces = 4, stages = 1 }, { way = 3, cluster = 1, blocks = 3, pieces = 4, stages = 2 }, { way = 3, cluster = 1, blocks = 3, pieces = 4, stages = 3 }, { way = 3, cluster = 1, blocks = 4, pieces = 4, stages = 1 }, { way = 3, cluster = 1, blocks = 4, pieces = 4, stages = 2 }, { way = 3, cluster = 1, blocks = 4, pieces = 4, stages = 3 }, { way = 3, cluster = 2, blocks = 1, pieces = 4, stages = 1 }, { way = 3, cluster = 2, blocks = 1, pieces = 4, stages = 2 }, { way = 3, cluster = 2, blocks = 1, pieces = 4, stages = 3 }, { way = 3, cluster = 2, blocks = 2, pieces = 4, stages = 1 }, { way = 3, cluster = 2, blocks = 2, pieces = 4, stages = 2 }, { way = 3, cluster = 2, blocks = 2, pieces = 4, stages = 3 }, { way = 3, cluster = 2, blocks = 3, pieces = 4, stages = 1 }, { way = 3, cluster = 2, blocks = 3, pieces = 4, stages = 2 }, { way = 3, cluster = 2, blocks = 3, pieces = 4, stages = 3 }, { way = 3, cluster = 2, blocks = 4, pieces = 4, stages = 1 }, { way = 3, cluster = 2, blocks = 4, pieces = 4, stages = 2 }, { way = 3, cluster = 2, blocks = 4, pieces = 4, stages = 3 }, { way = 3, cluster = 4, blocks = 1, pieces = 4, stages = 1 }, { way = 3, cluster = 4, blocks = 1, pieces = 4, stages = 2 }, { way = 3, cluster = 4, blocks = 1, pieces = 4, stages = 3 }, { way = 3, cluster = 4, blocks = 2, pieces = 4, stages = 1 }, { way = 3, cluster = 4, blocks = 2, pieces = 4, stages = 2 }, { way = 3, cluster = 4, blocks = 2, pieces = 4, stages = 3 }, { way = 3, cluster = 4, blocks = 3, pieces = 4, stages = 1 }, { way = 3, cluster = 4, blocks = 3, pieces = 4, stages = 2 }, { way = 3, cluster = 4, blocks = 3, pieces = 4, stages = 3 }, { way = 3, cluster = 4, blocks = 4, pieces = 4, stages = 1 }, { way = 3, cluster = 4, blocks = 4, pieces = 4, stages = 2 }, { way = 3, cluster = 4, blocks = 4, pieces = 4, stages = 3 }, { way = 3, cluster = 8, blocks = 1, pieces = 4, stages = 1 }, { way = 3, cluster = 8, blocks = 1, pieces = 4, stages = 2 }, { way = 3, cluster = 8, blocks = 1, pieces = 4, stages = 3 }, { way = 3, cluster = 8, blocks = 2, pieces = 4, stages = 1 }, { way = 3, cluster = 8, blocks = 2, pieces = 4, stages = 2 }, { way = 3, cluster = 8, blocks = 2, pieces = 4, stages = 3 }, { way = 3, cluster = 8, blocks = 3, pieces = 4, stages = 1 }, { way = 3, cluster = 8, blocks = 3, pieces = 4, stages = 2 }, { way = 3, cluster = 8, blocks = 3, pieces = 4, stages = 3 }, { way = 3, cluster = 8, blocks = 4, pieces = 4, stages = 1 }, { way = 3, cluster = 8, blocks = 4, pieces = 4, stages = 2 }, { way = 3, cluster = 8, blocks = 4, pieces = 4, stages = 3 }, { way = 3, cluster = 16, blocks = 1, pieces = 4, stages = 1 }, { way = 3, cluster = 16, blocks = 1, pieces = 4, stages = 2 }, { way = 3, cluster = 16, blocks = 1, pieces = 4, stages = 3 }, { way = 3, cluster = 16, blocks = 2, pieces = 4, stages = 1 }, { way = 3, cluster = 16, blocks = 2, pieces = 4, stages = 2 }, { way = 3, cluster = 16, blocks = 2, pieces = 4, stages = 3 }, { way = 3, cluster = 16, blocks = 3, pieces = 4, stages = 1 }, { way = 3, cluster = 16, blocks = 3, pieces = 4, stages = 2 }, { way = 3, cluster = 16, blocks = 3, pieces = 4, stages = 3 }, { way = 3, cluster = 16, blocks = 4, pieces = 4, stages = 1 }, { way = 3, cluster = 16, blocks = 4, pieces = 4, stages = 2 }, { way = 3, cluster = 16, blocks = 4, pieces = 4, stages = 3 }]

[let]
bytes_of_row = "C * bytes(x)"
needed       = "32 * ceil(bytes_of_row / (512 * cluster * pieces))"
shared       = "16 * pieces * needed * (stages * (2 if present(residual) else 1) + (1 if present(weight) else 0) + (1 if present(bias) else 0))"
clusters     = "ceil(R / (ceil(R / (sms * blocks // cluster)) if R > 0 else 1))"
whole        = "C % (16 // bytes(x)) == 0 and aligned(x, 16) and aligned(y, 16) and (not present(residual) or aligned(residual, 16) and aligned(s, 16)) and (not present(weight) or aligned(weight, 16)) and (not present(bias) or aligned(bias, 16))"

[requires]
"bytes_of_row * (2 if present(residual) else 1) <= 1800000" = "a row, and the residual's, must fit the shared memory of sixteen blocks, two on a multiprocessor"
"R * cluster < 2147483648" = "a launch has fewer than 2^31 blocks"

[config]
way     = 1
threads = 256
cluster = 16
blocks  = 2
pieces  = 1
early   = 0
stages  = 1

[[choice]]
when    = "whole and bytes_of_row <= 1024"
way     = 2
threads = 64
cluster = 1
blocks  = 16
pieces  = 1

[[choice]]
when    = "whole and bytes_of_row <= 2048"
way     = 2
threads = 128
cluster = 1
blocks  = 12
pieces  = 1

[[choice]]
when    = "whole and bytes_of_row <= 4096"
way     = 2
threads = 128
cluster = 1
blocks  = 12
pieces  = 2

[[choice]]
when    = "whole and bytes_of_row <= 6144"
way     = 2
threads = 128
cluster = 1
blocks  = 8
pieces  = 3

[[choice]]
when    = "whole and bytes_of_row > 6144 and bytes_of_row <= 8192 and R < 4 * sms"
way     = 2
threads = 512
cluster = 1
blocks  = 3

[[choice]]
when    = "whole and bytes_of_row <= 8192"
way     = 2
threads = 256
cluster = 1
blocks  = 6
pieces  = 2

[[choice]]
when    = "whole and bytes_of_row <= 12288"
way     = 2
threads = 256
cluster = 1
blocks  = 4
pieces  = 3

[[choice]]
when    = "whole and bytes_of_row <= 16384"
way     = 2
threads = 512
cluster = 1
blocks  = 3
pieces  = 2

[[choice]]
when    = "whole and bytes_of_row <= 32768"
way     = 2
threads = 1024
cluster = 1
blocks  = 1
pieces  = 2

[[choice]]
when    = "whole and bytes_of_row <= 65536"
way     = 2
threads = 1024
cluster = 1
blocks  = 1
pieces  = 4

[[choice]]
when    = "whole and bytes_of_row > 262144 and bytes_of_row <= 524288 and R * 16 >= 4 * sms"
way     = 3
cluster = 16
blocks  = 2
pieces  = 4
stages  = 1

[[choice]]
when    = "bytes_of_row <= 4096"
threads = 128
cluster = 1
blocks  = 12

[[choice]]
when    = "bytes_of_row <= 8192"
threads = 256
cluster = 1
blocks  = 6

[[choice]]
when    = "bytes_of_row <= 32768"
threads = 256
cluster = 1
blocks  = 3

[[choice]]
when    = "bytes_of_row <= 65536"
threads = 512
cluster = 1
blocks  = 2

[[choice]]
when    = "bytes_of_row <= 131072"
threads = 512
cluster = 2
blocks  = 2

[[choice]]
when    = "bytes_of_row <= 262144"
threads = 256
cluster = 8
blocks  = 4

[[choice]]
when    = "bytes_of_row <= 524288"
threads = 512
cluster = 8
blocks  = 2

[[launch]]
when    = "way == 1"
kernel  = "norm_forward<{T}, {threads}, {cluster}, {blocks}, false, {present(residual)}>"
grid    = ["R * cluster"]
block   = ["threads"]
cluster = ["cluster"]
shared  = "(32 if present(residual) else 16) * ceil(bytes_of_row / (16 * cluster))"

[[launch]]
when    = "way == 2"
kernel  = "norm_whole<{T}, {threads}, {pieces}, {blocks}, {early == 1}, false, {present(residual)}>"
grid    = ["R"]
block   = ["threads"]

[[launch]]
when    = "way == 3"
kernel  = "norm_stay<{T}, {pieces}, {needed}, {cluster}, {blocks}, {stages}, false, {present(residual)}, {present(weight)}, {present(bias)}>"
grid    = ["cluster * clusters"]
block   = ["needed"]
cluster = ["cluster"]
shared  = "shared"
args    = ["R: i32", "C: i32", "clusters: i32", "x: T[R, C]", "xs: i64 = stride(x, 0)", "residual: T[R, C]?", "rs: i64 = stride(residual, 0)", "weight: T[C]?", "bias: T[C]?", "y: T[R, C]", "ys: i64 = stride(y, 0)", "s: T[R, C]?", "ss: i64 = stride(s, 0)", "eps: f32"]
*/
#include "norms.cuh"
